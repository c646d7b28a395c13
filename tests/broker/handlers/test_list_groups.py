"""ListGroups: every group, or those that pass the filters."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_sync_group import a_member


@pytest.mark.parametrize("version", range(6))
def test_every_version(raw, version):
    group = uuid.uuid4().hex
    a_member(raw, group)
    answer = raw.call(16, version)
    assert answer.error_code is Code.none
    (found,) = [each for each in answer.groups if each.group_id == group]
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "CompletingRebalance"
    if version >= 5:
        assert found.group_type == "classic"


def test_filters_do_not_mind_case(raw):
    group = uuid.uuid4().hex
    a_member(raw, group)

    def listed(**filters):
        return group in [each.group_id for each in raw.call(16, 5, **filters).groups]

    assert listed(states_filter=["completingREBALANCE"], types_filter=["CLASSIC"])
    assert not listed(states_filter=["Empty"])
    assert not listed(types_filter=["consumer"])
