"""Transaction markers: the control record that ends a transaction in a partition.

::

    key    version (int16, 0) │ type (int16): 0 abort, 1 commit
    value  version (int16, 0) │ coordinator epoch (int32)
"""

from struct import Struct

import msgspec

from mainstem.records.batch import Bytes, decode_header
from mainstem.records.errors import CorruptRecords
from mainstem.records.record import Record, build_batch, decode_records

_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class Marker(msgspec.Struct, frozen=True, gc=False):
    """The end of one producer's transaction."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp: int) -> bytes:
    """The control batch that commits or aborts the producer's transaction."""
    record = Record(0, timestamp, _KEY.pack(0, 1 if commit else 0), _VALUE.pack(0, coordinator_epoch))
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def decode_marker(batch: Bytes) -> Marker:
    """What `build_marker` was given.

    Raises:
        CorruptBatch: the batch does not check out.
        CorruptRecords: it is not a transaction marker.
    """
    header = decode_header(batch)
    records = decode_records(batch)
    if not header.is_control or len(records) != 1:
        raise CorruptRecords(f"offset {header.base_offset}: expected a control batch of one record")
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < _KEY.size or len(value) < _VALUE.size:
        raise CorruptRecords(f"offset {header.base_offset}: a marker's key is {len(key)} bytes, its value {len(value)}")
    kind = _KEY.unpack_from(key)[1]
    if kind not in (0, 1):
        raise CorruptRecords(
            f"offset {header.base_offset}: control record type {kind}, expected abort (0) or commit (1)"
        )
    return Marker(header.producer_id, header.producer_epoch, kind == 1, _VALUE.unpack_from(value)[1])
