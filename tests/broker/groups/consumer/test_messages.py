from mainstem.broker.groups.consumer.messages import JOIN, Heartbeat


def test_what_makes_a_heartbeat_full():
    """Rebalance timeout, a subscription and the partitions: a client sends all of them after an error."""
    everything = {"rebalance_timeout_ms": 1, "topics": ("t",), "reported": {}}
    assert Heartbeat(member_id="m", epoch=JOIN).is_full
    assert Heartbeat(member_id="m", epoch=1, **everything).is_full
    assert Heartbeat(member_id="m", epoch=1, rebalance_timeout_ms=1, regex="t", reported={}).is_full
    for missing in everything:
        some = {name: value for name, value in everything.items() if name != missing}
        assert not Heartbeat(member_id="m", epoch=1, **some).is_full
