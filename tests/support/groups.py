"""Members of groups of the classic protocol."""

from mainstem.broker.groups.classic.messages import JoinRequest, Protocol, SyncRequest


def a_join(member_id="", *, client="c", session=10_000, instance=None):
    return JoinRequest(
        member_id=member_id,
        instance_id=instance,
        client_id=client,
        client_host="/h",
        protocol_type="consumer",
        protocols=(Protocol("range", b"\0\0\0\0\0\0"),),
        rebalance_timeout_ms=30_000,
        session_timeout_ms=session,
        member_id_required=False,
    )


async def a_member(groups, group="g", **options):
    """A stable group of one member; its id."""
    joined = await groups.classic.join(group, a_join(**options))
    member = joined.member_id
    assigned = await groups.classic.sync(
        group,
        SyncRequest(
            member_id=member,
            instance_id=options.get("instance"),
            generation=joined.generation,
            assignments={member: b"all"},
        ),
    )
    assert assigned.assignment == b"all"
    return member
