"""Reading an internal partition from its start: how a coordinator finds what it had stored."""

from collections.abc import AsyncIterator

from mainstem.log import PartitionLog
from mainstem.records import BatchHeader, Marker, Record, decode_header, decode_marker, iter_spans
from mainstem.records.record import decode_record, iter_record_spans, record_bytes

_READ_BYTES = 4 * 2**20


async def replay(log: PartitionLog) -> AsyncIterator[tuple[BatchHeader, Marker | None, list[Record]]]:
    """Every batch in order: its header, and either the marker it is or its records. Uncommitted ones are included."""
    offset = log.log_start_offset
    while offset < log.high_watermark:
        found = await log.read(offset, _READ_BYTES, committed_only=False, at_least_one=True)
        for place in iter_spans(found.records):
            batch = memoryview(found.records)[place.position : place.end]
            header = decode_header(batch)
            offset = place.last_offset + 1
            if header.is_control:
                yield header, decode_marker(batch), []
            else:
                data = record_bytes(header, batch)
                yield header, None, [decode_record(header, data, *span) for span in iter_record_spans(header, data)]
        if not found.records:
            return
