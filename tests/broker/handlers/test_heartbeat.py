"""Heartbeat: alive or not."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_sync_group import a_member


@pytest.mark.parametrize("version", range(5))
def test_every_version(raw, version):
    group = uuid.uuid4().hex
    member = a_member(raw, group)
    alive = {"group_id": group, "generation_id": 1, "member_id": member}
    assert raw.call(12, version, **alive).error_code is Code.none
    assert raw.call(12, version, **alive | {"generation_id": 2}).error_code is Code.illegal_generation
    assert raw.call(12, version, **alive | {"member_id": "x"}).error_code is Code.unknown_member_id
    assert raw.call(12, version, **alive | {"group_id": "nowhere"}).error_code is Code.unknown_member_id
