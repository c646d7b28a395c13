"""The four codecs of the record format, by cramjam."""

from collections.abc import Callable
from struct import Struct

import cramjam

from mainstem.records.errors import CorruptRecords, UnknownCompression

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""A codec's number in the batch's attributes is its place here."""

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


def decompress(codec: int, data: bytes | memoryview) -> bytes:
    """What `compress` was given.

    Raises:
        CorruptRecords: the codec cannot read it.
        UnknownCompression: there is no such codec.
    """
    if codec == 0:
        return bytes(data)
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise UnknownCompression(f"compression codec {codec}: the record format defines 0 to 4")
    try:
        return decoder(bytes(data))
    except cramjam.DecompressionError as error:
        raise CorruptRecords(f"{NAMES[codec]}: {error}") from None


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


_DECODERS: dict[int, Callable[[bytes], bytes]] = {
    1: lambda data: bytes(cramjam.gzip.decompress(data)),
    2: _decompress_snappy,
    3: lambda data: bytes(cramjam.lz4.decompress(data)),
    4: lambda data: bytes(cramjam.zstd.decompress(data)),
}
