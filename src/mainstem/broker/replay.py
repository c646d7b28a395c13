"""Reading an internal partition from its start: how a coordinator finds what it had stored."""

from collections.abc import AsyncIterator

from mainstem.broker.fields import LaterVersion
from mainstem.core import CorruptData, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import PartitionLog
from mainstem.records import BatchHeader, Marker, Record, decode_header, decode_marker, iter_spans
from mainstem.records.record import decode_record, iter_record_spans, record_bytes

_READ_BYTES = 4 * 2**20

log = get_logger()


def report_unreadable(partition: TopicPartition, offset: int, error: CorruptData, *, hint: str) -> None:
    """A stored record does not decode: it is left out, and said.

    Its batch's CRC is right, so it was written like this, by another version or another program. One record must not
    keep all groups and transactions from coming back.

    Raises:
        LaterVersion: a later program wrote it, and can read it: without it an acknowledged commit would be missing.
    """
    if isinstance(error, LaterVersion):
        where = f"{partition}: offset {offset}"
        raise LaterVersion(f"{where}: {error}", hint="start the log with the later version of the program") from error
    log.error(
        "coordinator_record_unreadable",
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        error=str(error),
        hint=hint,
    )


async def replay(partition: PartitionLog) -> AsyncIterator[tuple[BatchHeader, Marker | None, list[Record]]]:
    """Every batch in order: its header, and either the marker it is or its records. Uncommitted ones are included.

    A batch whose records cannot be told apart is given without any, after a line in the log.

    Raises:
        StorageError: the partition is damaged, or the machine is short of something.
    """
    partition.check_usable()  # one that a start has found damaged seems to be empty
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        found = await partition.read(offset, _READ_BYTES, committed_only=False, at_least_one=True)
        for piece in found.pieces:
            for place in iter_spans(piece):
                batch = memoryview(piece)[place.position : place.end]
                header = decode_header(batch)
                offset = place.last_offset + 1
                if header.is_control:
                    yield header, decode_marker(batch), []
                else:
                    yield header, None, _records(partition, header, batch)
        if not found.pieces:
            return


def _records(partition: PartitionLog, header: BatchHeader, batch: memoryview) -> list[Record]:
    try:
        data = record_bytes(header, batch)
        return [decode_record(header, data, *span) for span in iter_record_spans(header, data)]
    except CorruptData as error:
        hint = f"the whole batch, to offset {header.last_offset}, is left out"
        report_unreadable(partition.topic_partition, header.base_offset, error, hint=hint)
        return []
