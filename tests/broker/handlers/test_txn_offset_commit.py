"""TxnOffsetCommit: offsets that wait for the end of a transaction."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.raw import producer_of


@pytest.mark.parametrize("version", range(6))
def test_every_version(raw, topic, version):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    if version < 5:
        asked = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
        assert raw.call(25, 3, **asked, group_id=name).error_code is Code.none
    assert raw.commit_in_transaction(name, producer, name, topic, 5, version=version) is Code.none
    assert raw.committed(name, topic) == (-1, Code.none)
    assert raw.end(name, producer, commit=True).error_code is Code.none
    assert raw.committed(name, topic, stable=True) == (5, Code.none)


def test_a_commit_of_a_stranger_changes_nothing(raw, topic):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    stale = raw.commit_in_transaction(name, (producer[0], 9), name, topic, 5, version=5)
    assert stale is Code.invalid_producer_epoch
    unknown = raw.commit_in_transaction("nobody", producer, name, topic, 5, version=5)
    assert unknown is Code.invalid_producer_id_mapping
    assert raw.committed(name, topic, stable=True) == (-1, Code.none)
