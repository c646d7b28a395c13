"""EndTxn: the outcome is there for every reader when it is answered."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.raw import RawClient, producer_of


def test_g8_end_txn_is_offered_in_its_range_and_ends_the_connection_beyond(mainstem_log):
    """Transactions of version 2 need version 5 of it, those of version 1 what comes before; there is no version 6."""
    with RawClient(mainstem_log.bootstrap) as raw:
        (offered,) = [each for each in raw.call(18, 0).api_keys if each.api_key == 26]
        assert (offered.min_version, offered.max_version) == (0, 5)
        with pytest.raises(ConnectionError):
            raw.unknown_version(26, 6, answer_version=5)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_g8_end_txn_ends_it_in_every_version_of_its_range(raw, topic, version, commit):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    assert raw.add(name, producer, topic, 0) is Code.none
    assert raw.produce(topic, b"v", transactional_id=name, producer=producer, sequence=0) is Code.none
    asked = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1], "committed": commit}
    fenced = raw.call(26, version, **asked | {"producer_epoch": 9}).error_code
    assert fenced is (Code.producer_fenced if version >= 2 else Code.invalid_producer_epoch)
    answer = raw.call(26, version, **asked)
    assert answer.error_code is Code.none
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (producer[0], producer[1] + 1)
    (state,) = raw.call(65, 0, transactional_ids=[name]).transaction_states
    assert state.transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
    latest = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    stable = raw.call(2, 4, replica_id=-1, isolation_level=1, topics=latest)
    assert stable.topics[0].partitions[0].offset == 2, "the record and its marker: nothing holds readers back"
