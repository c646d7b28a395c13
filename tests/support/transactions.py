"""What a producer writes in a transaction, and what readers see of it."""

from mainstem.records import Record, build_batch
from tests.support.broker import committed_records


def transactional_batch(producer, sequence, value, clock):
    return build_batch(
        [Record(0, clock.now_ms(), b"k", value)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )


async def committed_values(broker, partition):
    return [record.value for record in await committed_records(broker.partition(partition))]
