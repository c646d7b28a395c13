"""The checkpoint: what the segments hold for certain, and the state that leads to; the journal goes on from there.

::

    0      4      8           12       14
    ├──────┼──────┼───────────┼────────┼────────────────────────────────────────────┐
    │ MSCP │ crc  │ length    │ format │ msgpack: Checkpoint, its partitions inside │
    └──────┴──────┴───────────┴────────┴────────────────────────────────────────────┘
                  └────────────── the CRC-32C covers this, `length` counts it ───────┘

The file is replaced as a whole (write, sync, rename, sync the directory). Fields are arrays: new ones are added at the
end with a default; a format that older programs must not read gets the next number.
"""

from pathlib import Path
from struct import Struct

import msgspec
from crc32c import crc32c

from mainstem.log.disk import Disk
from mainstem.log.errors import CorruptFile
from mainstem.log.index import AbortedTransaction, IndexState
from mainstem.log.producers import Producer

NAME = "checkpoint"
FORMAT = 1

_MAGIC = b"MSCP"
_HEADER = Struct(">4sIIH")
_CRC_FROM = 8
_FORMAT = Struct(">H")


class SegmentState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment up to the checkpoint."""

    base_offset: int
    size: int
    next_offset: int
    max_timestamp: int
    max_timestamp_offset: int
    first_append_ms: int
    unindexed_bytes: int
    offset_index: IndexState
    time_index: IndexState
    time_index_last: tuple[int, int]
    aborted: list[AbortedTransaction]
    offsets_crc: int = 0


class PartitionState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partition up to the checkpoint."""

    topic: str
    partition: int
    topic_id: str
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    epochs: list[tuple[int, int]]
    segments: list[SegmentState]
    producers: list[Producer]
    cleaned_offset: int = 0
    """Compaction has seen every record below it."""
    tombstones_expire_ms: int = 0
    """When the first tombstone that compaction has kept may go; 0 without one."""
    held: int = 0
    """Not 0: a start could not bring the partition here to where the journal leads; what that says of it is in a file
    of its own, which has this number."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """All partitions of a directory, and where the journal goes on."""

    clean: bool
    """The log was closed: the journal holds nothing more."""
    generation: int
    """Journal frames of this generation and later come after the checkpoint."""
    sequence: int
    """Of the first of them."""
    partitions: list[msgspec.Raw]


_encoder = msgspec.msgpack.Encoder()
_partition_decoder = msgspec.msgpack.Decoder(PartitionState)
_decoder = msgspec.msgpack.Decoder(Checkpoint)


def encode_partition(state: PartitionState) -> msgspec.Raw:
    """A partition's words in a checkpoint: kept as they are until the partition changes."""
    return msgspec.Raw(_encoder.encode(state))


def decode_partition(data: msgspec.Raw) -> PartitionState:
    """What `encode_partition` was given; fields that an older program did not write have their defaults."""
    return _partition_decoder.decode(data)


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's content."""
    body = _FORMAT.pack(FORMAT) + _encoder.encode(checkpoint)
    header = _MAGIC + b"\0\0\0\0" + len(body).to_bytes(4, "big")
    crc = crc32c(body, crc32c(header[_CRC_FROM:]))
    return _MAGIC + crc.to_bytes(4, "big") + header[_CRC_FROM:] + body


def decode(data: bytes, path: Path) -> Checkpoint:
    """What `encode` was given.

    Raises:
        CorruptFile: the file does not check out, or a later version of the program wrote it.
    """
    hint = (
        "move it away: then every batch of every partition is read and checked at start; a copy is older, and says less"
    )
    if len(data) < _HEADER.size or data[:4] != _MAGIC:
        raise CorruptFile(f"{path}: not a checkpoint ({len(data)} bytes)", hint=hint)
    _, crc, length, found = _HEADER.unpack_from(data)
    if length != len(data) - 12 or crc32c(memoryview(data)[_CRC_FROM:]) != crc:
        raise CorruptFile(f"{path}: {len(data)} bytes with a CRC that does not match", hint=hint)
    if found > FORMAT:
        raise CorruptFile(f"{path}: format {found}, this program reads up to {FORMAT}", hint="use the newer program")
    try:
        return _decoder.decode(memoryview(data)[_HEADER.size :])
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{path}: {error}", hint=hint) from None


def load(disk: Disk, directory: Path) -> Checkpoint | None:
    """The directory's checkpoint; None where there is no such file."""
    path = directory / NAME
    try:
        return decode(disk.read_file(path), path)
    except FileNotFoundError:
        return None


def save(disk: Disk, directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the directory's checkpoint, durably (blocking)."""
    disk.write_atomically(directory / NAME, encode(checkpoint))
