"""LeaveGroup: one member, or several with a code each."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_sync_group import a_member


@pytest.mark.parametrize("version", range(6))
def test_every_version(raw, version):
    group = uuid.uuid4().hex
    member = a_member(raw, group)
    for expected in (Code.none, Code.unknown_member_id):
        if version < 3:
            assert raw.call(13, version, group_id=group, member_id=member).error_code is expected
            continue
        reason = {"reason": "done"} if version >= 5 else {}
        answer = raw.call(13, version, group_id=group, members=[{"member_id": member, **reason}])
        assert answer.error_code is Code.none
        assert [each.error_code for each in answer.members] == [expected]


def test_a_group_that_is_not_there_is_said_of_each_member(raw):
    answer = raw.call(13, 5, group_id="nowhere", members=[{"member_id": "a"}, {"member_id": "b"}])
    assert answer.error_code is Code.none
    assert [each.error_code for each in answer.members] == [Code.unknown_member_id] * 2
