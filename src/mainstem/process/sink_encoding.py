"""Arrow columns to Kafka's records, a whole column at a time: no Python object per record.

    record   varint length of what follows | 0 | 0 | varint offset delta | varint key length | key
             | varint value length | value | varint number of headers | headers
    header   varint key length | key | varint value length | value

All numbers are zigzag varints; a null has length -1. The second 0 is the timestamp delta: all records of a batch get
the time of their append. https://kafka.apache.org/documentation/#record

Arrow joins the columns of a batch element by element into one buffer, and that buffer is the body of the record batch.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BATCH_BYTES = 256 * 1024
LONGEST = 1 << 16
"""Keys, values and records of this many bytes or more are left to the slow path: lengths come from a table."""

_OVERHEAD = 16  # more than the numbers of a record without headers take


class Encoded(msgspec.Struct, frozen=True):
    """The records of one batch, encoded; `offset delta` counts from 0."""

    records: Any  # a buffer
    count: int


class TooLong(Exception):
    """A key, a value or a record is too long for the tables."""


def encode(keys: Any, values: Any, headers: Any | None = None, *, batch_bytes: int = BATCH_BYTES) -> Iterator[Encoded]:
    """Encode binary arrays of one length in batches of about `batch_bytes`, in their order.

    `headers`: a list array of structs {key string, value binary}, or None.

    Raises:
        TooLong: before anything is given out.
    """
    key, value = _field(keys), _field(values)
    columns = [*key.parts, *value.parts]
    sizes = key.sizes + value.sizes
    if headers is None:
        columns.append(pa.scalar(b"\0", pa.binary()))
        sizes = sizes + 1
    else:
        counts, encoded, header_sizes = _headers(headers)
        columns += [counts, encoded]
        sizes = sizes + header_sizes
    if int(sizes.max(initial=0)) + _OVERHEAD >= LONGEST:
        raise TooLong
    for start, end in _cuts(sizes, batch_bytes):
        yield _batch(columns, sizes, start, end)


def _batch(columns: list[Any], sizes: Any, start: int, end: int) -> Encoded:
    count = end - start
    tables = _tables()
    lengths = _look_up(tables.plain, sizes[start:end] + tables.offset_sizes[:count])
    parts = [part.slice(start, count) if isinstance(part, pa.Array) else part for part in columns]
    joined = _join(lengths, tables.offsets.slice(0, count), *parts)
    edges = np.frombuffer(joined.buffers()[1], np.int32)
    first, last = int(edges[joined.offset]), int(edges[joined.offset + count])
    return Encoded(joined.buffers()[2].slice(first, last - first), count)


class _Field(msgspec.Struct, frozen=True):
    """A column with its length before it: two parts to be joined, and the sum of their sizes."""

    parts: tuple[Any, Any]
    sizes: Any


def _field(column: Any) -> _Field:
    lengths = pc.binary_length(column)
    plus_one = (pc.fill_null(lengths, -1) if lengths.null_count else lengths).to_numpy().astype(np.int32) + 1
    if int(plus_one.max(initial=0)) >= LONGEST:
        raise TooLong
    tables = _tables()
    sizes = tables.length_sizes[plus_one] + np.maximum(plus_one - 1, 0)
    return _Field((_look_up(tables.lengths, plus_one), column), sizes)


def _headers(column: Any) -> tuple[Any, Any, Any]:
    """The number of headers of each record, their bytes, and the size of both."""
    offsets = column.offsets.to_numpy()
    flat = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    key, value = _field(flat.field("key").cast(pa.binary())), _field(flat.field("value"))
    each = _join(*key.parts, *value.parts)
    lists = pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), each)
    joined = pc.binary_join(lists, pa.scalar(b"", pa.binary()))
    counts = np.diff(offsets).astype(np.int32) + 1  # a null list has no elements either
    if int(counts.max(initial=0)) >= LONGEST:
        raise TooLong
    tables = _tables()
    lengths = pc.fill_null(pc.binary_length(joined), 0).to_numpy()
    return _look_up(tables.lengths, counts), joined, tables.length_sizes[counts] + lengths


def _cuts(sizes: Any, batch_bytes: int) -> Iterator[tuple[int, int]]:
    """Where batches begin and end: as many records as fit, one at least."""
    ends = np.cumsum(sizes + _OVERHEAD // 2, dtype=np.int64)
    start, done = 0, 0
    while start < len(sizes):
        end = max(start + 1, int(np.searchsorted(ends, done + batch_bytes, side="right")))
        end = min(end, start + LONGEST - 1)
        yield start, end
        start, done = end, int(ends[end - 1])


def _look_up(table: Any, indices: Any) -> Any:
    """The table's entries; one scalar where all are the same, as with keys of one length."""
    low, high = int(indices.min(initial=LONGEST)), int(indices.max(initial=0))
    return table[low] if low == high else table.take(pa.array(indices))


def _join(*parts: Any) -> Any:
    empty = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(*parts, empty, null_handling="replace", null_replacement=b"")


class _Tables(msgspec.Struct, frozen=True):
    plain: Any  # n -> varint of n
    offsets: Any  # n -> attributes, timestamp delta 0, varint of n
    offset_sizes: Any
    lengths: Any  # n -> varint of n - 1
    length_sizes: Any


@cache
def _tables() -> _Tables:
    """Built once per worker process, in about 50 ms."""
    encoded = [_varint(number) for number in range(-1, LONGEST)]
    sizes = np.array([len(data) for data in encoded], np.int32)
    return _Tables(
        plain=pa.array(encoded[1:], pa.binary()),
        offsets=pa.array([b"\0\0" + data for data in encoded[1:]], pa.binary()),
        offset_sizes=sizes[1:] + 2,
        lengths=pa.array(encoded[:-1], pa.binary()),
        length_sizes=sizes[:-1],
    )


def _varint(number: int) -> bytes:
    rest = 2 * number if number >= 0 else -2 * number - 1
    result = bytearray()
    while rest >= 0x80:
        result.append(rest & 0x7F | 0x80)
        rest >>= 7
    result.append(rest)
    return bytes(result)
