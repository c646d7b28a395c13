"""The four codecs of the record format, by cramjam."""

from collections.abc import Callable
from struct import Struct

import cramjam

from mainstem.records.errors import CorruptRecords, UnknownCompression, UnpackedTooLarge

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
ZSTD = NAMES.index("zstd")
"""A codec's number in the batch's attributes is its place here."""
UNPACKED_BYTES = 256 << 20
"""What a batch may unpack to, where its topic says nothing smaller: a megabyte of zstd may hold 32 GB."""

# snappy-java's stream: magic, two version numbers, then blocks each behind its length. Java writes it, librdkafka
# writes one bare block, readers accept both.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")


def compress(codec: int, data: bytes) -> bytes:
    """Records as a batch with this codec carries them."""
    if codec == 0:
        return data
    if codec == 1:
        return bytes(cramjam.gzip.compress(data))
    if codec == 2:
        return _compress_snappy(data)
    if codec == 3:
        # Independent blocks: Kafka's Java reader refuses linked ones.
        compressor = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    if codec == 4:
        return bytes(cramjam.zstd.compress(data, level=3))
    raise UnknownCompression(f"compression codec {codec}: the record format defines 0 to 4")


def decompress(codec: int, data: bytes | memoryview, *, limit: int = UNPACKED_BYTES) -> bytes:
    """What `compress` was given.

    Raises:
        CorruptRecords: the codec cannot read it.
        UnpackedTooLarge: it is more than `limit` bytes; no more than those were unpacked.
        UnknownCompression: there is no such codec.
    """
    if codec == 0:
        return bytes(data)
    if codec != _SNAPPY and codec not in _INTO:
        raise UnknownCompression(f"compression codec {codec}: the record format defines 0 to 4")
    try:
        return _decompress_bounded(codec, bytes(data), limit)
    except cramjam.DecompressionError as error:
        raise CorruptRecords(f"{NAMES[codec]}: {error}") from None


def _decompress_bounded(codec: int, data: bytes, limit: int) -> bytes:
    """Unpack into room that grows up to the limit: nothing tells the size beforehand that could be trusted."""
    if codec == _SNAPPY:  # but here: each block says its size, and is refused if it has another
        if _snappy_size(data) > limit:
            raise UnpackedTooLarge(f"snappy: {len(data)} bytes unpack to more than {limit}")
        return _decompress_snappy(data)
    room = min(limit, _ROOM * max(len(data), 1))
    while True:
        buffer = bytearray(room)
        try:
            size = _INTO[codec](data, buffer)
            return bytes(memoryview(buffer)[:size])
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise
        if room == limit:
            raise UnpackedTooLarge(f"{NAMES[codec]}: {len(data)} bytes unpack to more than {limit}")
        room = min(limit, _ROOM * room)


def _snappy_size(data: bytes) -> int:
    if not data.startswith(_XERIAL_MAGIC):
        return int(cramjam.snappy.decompress_raw_len(data))
    position, size = len(_XERIAL_HEADER), 0
    while position + _BLOCK_LENGTH.size < len(data):
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += _BLOCK_LENGTH.size
        if length <= 0:
            break  # `_decompress_snappy` says what is wrong
        size += int(cramjam.snappy.decompress_raw_len(data[position : position + length]))
        position += length
    return size


def _compress_snappy(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    position, parts = len(_XERIAL_HEADER), []
    while position < len(data):
        if len(data) - position < _BLOCK_LENGTH.size:
            raise CorruptRecords(f"snappy: byte {position}: a block length is cut short")
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += _BLOCK_LENGTH.size
        if not 0 <= length <= len(data) - position:
            raise CorruptRecords(f"snappy: byte {position}: block of {length} bytes, {len(data) - position} are left")
        parts.append(bytes(cramjam.snappy.decompress_raw(data[position : position + length])))
        position += length
    return b"".join(parts)


_SNAPPY = 2
_INTO: dict[int, Callable[[bytes, bytearray], int]] = {
    1: cramjam.gzip.decompress_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
_NO_ROOM = "failed to write whole buffer"
_ROOM = 8  # times the bytes: few batches need a second try
