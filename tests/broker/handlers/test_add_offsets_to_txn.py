"""AddOffsetsToTxn: the group's partition joins the transaction."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.raw import producer_of


@pytest.mark.parametrize("version", range(5))
def test_every_version(raw, version):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    asked = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1], "group_id": "g"}
    assert raw.call(25, version, **asked).error_code is Code.none
    (state,) = raw.call(65, 0, transactional_ids=[name]).transaction_states
    assert [each.topic for each in state.topics] == ["__consumer_offsets"]
    fenced = raw.call(25, version, **asked | {"producer_epoch": 9}).error_code
    assert fenced is (Code.producer_fenced if version >= 2 else Code.invalid_producer_epoch)
