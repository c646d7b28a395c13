"""InitProducerId: an identity, with or without a transactional id."""

import uuid

import pytest

from mainstem.wire.errors import Code


@pytest.mark.parametrize("version", range(6))
def test_every_version(raw, version):
    name = uuid.uuid4().hex
    first = raw.call(22, version, transactional_id=name, transaction_timeout=1000)
    second = raw.call(22, version, transactional_id=name, transaction_timeout=1000)
    assert (first.error_code, first.producer_epoch) == (Code.none, 0)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    alone = raw.call(22, version, transactional_id=None, transaction_timeout=-1)
    assert (alone.error_code, alone.producer_epoch) == (Code.none, 0)
    assert alone.producer_id > second.producer_id


def test_old_clients_do_not_know_producer_fenced(raw):
    name = uuid.uuid4().hex
    first = raw.init(name)
    raw.init(name)
    stale = {"producer_id": int(first.producer_id), "producer_epoch": 0}
    assert raw.init(name, version=3, **stale).error_code is Code.invalid_producer_epoch
    refused = raw.init(name, version=4, **stale)
    assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (Code.producer_fenced, -1, -1)
