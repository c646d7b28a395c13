import uuid

import pytest

from mainstem.wire.errors import Code

PROTOCOLS = [(69, 1, "consumer"), (77, 1, "share"), (89, 0, "streams")]


@pytest.mark.parametrize(("api", "version", "kind"), PROTOCOLS)
def test_of_what_is_no_group_of_the_protocol_nothing_is_told_but_why(raw, topic, api, version, kind):
    committing, nobody = (f"group-{uuid.uuid4().hex[:12]}" for _ in range(2))
    offsets = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    raw.call(8, 8, group_id=committing, topics=offsets)
    found = raw.call(api, version, group_ids=[committing, nobody, "", nobody]).groups
    assert [(each.group_id, each.error_code, each.error_message) for each in found] == [
        (committing, Code.group_id_not_found, f"Group {committing} is not a {kind} group."),
        (nobody, Code.group_id_not_found, f"Group {nobody} not found."),
        ("", Code.invalid_group_id, None),
    ]
    for each in found:
        assert (each.group_state, each.group_epoch, each.assignment_epoch, each.members) == ("", 0, 0, ())
        assert each.authorized_operations == -(2**31)
