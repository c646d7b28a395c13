"""Frames and headers: what stands before every request and every answer.

    request   int32 size | int16 api key | int16 version | int32 correlation id | client id | [tags] | body
    answer    int32 size | int32 correlation id | [tags] | body

`size` counts what follows itself. The client id is a nullable string with an int16 length, in flexible versions too;
the tags (KIP-482) are there in flexible versions only. The answer to ApiVersions never has tags, so that a client can
read it before it knows what the broker speaks. https://kafka.apache.org/protocol#protocol_messages
"""

from struct import Struct
from typing import Final

import msgspec

from mainstem.wire.errors import MalformedFrame

SIZE: Final = Struct(">i")
_FIXED: Final = Struct(">hhih")  # api key, version, correlation id, length of the client id
_ANSWER: Final = Struct(">ii")

API_VERSIONS: Final = 18

# The first flexible version of every API; the others are flexible from version 0 on. From the message definitions of
# Kafka 4.3 (`flexibleVersions`); a test compares it with kio's classes.
FIRST_FLEXIBLE: Final[dict[int, int]] = {
    0: 9, 1: 12, 2: 6, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 17: 32767, 18: 3, 19: 5,
    20: 4, 21: 2, 22: 2, 23: 4, 24: 3, 25: 3, 26: 3, 27: 1, 28: 3, 29: 2, 30: 2, 31: 2, 32: 4, 33: 2, 34: 2, 35: 2,
    36: 2, 37: 2, 38: 2, 39: 2, 40: 2, 41: 2, 42: 2, 43: 2, 44: 1, 47: 32767, 48: 1, 49: 1, 53: 1, 54: 1,
}  # fmt: skip
_MOST_TAGS: Final = 100
MOST_TEXT: Final = 0x7FFF
"""Bytes of a string, as in Kafka also where the wire could say more: ids and names may be kept for long."""


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a request, and the byte of the frame where its body starts."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: int


def is_flexible(api_key: int, version: int) -> bool:
    """True if this version uses compact lengths and tags."""
    return version >= FIRST_FLEXIBLE.get(api_key, 0)


def read_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits and the position behind it.

    Raises:
        MalformedFrame: cut short, or longer than five bytes.
    """
    value = shift = 0
    while True:
        try:
            byte = data[position]
        except IndexError:
            raise MalformedFrame(f"byte {position}: a varint is cut short") from None
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise MalformedFrame(f"byte {position}: a varint has more than five bytes")


def skip_tags(data: bytes | bytearray | memoryview, position: int) -> int:
    """The position behind a section of tagged fields.

    Raises:
        MalformedFrame: the section is cut short, or has more fields than any message will ever have.
    """
    count, position = read_varint(data, position)
    if count > _MOST_TAGS:
        raise MalformedFrame(f"byte {position}: {count} tagged fields; the limit is {_MOST_TAGS}")
    for _ in range(count):
        _, position = read_varint(data, position)
        size, position = read_varint(data, position)
        position += size
        if position > len(data):
            raise MalformedFrame(f"byte {position}: a tagged field is cut short")
    return position


def read_header(frame: bytes | bytearray | memoryview) -> RequestHeader:
    """The header of a request frame (without the frame's size).

    Raises:
        MalformedFrame: cut short, or a client id that is no UTF-8.
    """
    if len(frame) < _FIXED.size:
        raise MalformedFrame(f"a request header has at least {_FIXED.size} bytes, found {len(frame)}")
    api_key, version, correlation_id, size = _FIXED.unpack_from(frame)
    body = _FIXED.size + max(size, 0)
    if body > len(frame):
        raise MalformedFrame(f"api {api_key}: a client id of {size} bytes in a frame of {len(frame)}")
    try:
        client_id = str(frame[_FIXED.size : body], "utf-8")
    except UnicodeDecodeError:
        raise MalformedFrame(f"api {api_key}: the client id is not UTF-8") from None
    if version >= FIRST_FLEXIBLE.get(api_key, 0):
        body = body + 1 if body < len(frame) and frame[body] == 0 else skip_tags(frame, body)
    return RequestHeader(api_key, version, correlation_id, client_id, body)


def answer_header(api_key: int, version: int, correlation_id: int, body_size: int) -> bytes:
    """Size and header of an answer whose body has `body_size` bytes."""
    if api_key != API_VERSIONS and is_flexible(api_key, version):
        return _ANSWER.pack(body_size + 5, correlation_id) + b"\0"
    return _ANSWER.pack(body_size + 4, correlation_id)
