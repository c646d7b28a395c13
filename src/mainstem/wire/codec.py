"""kio's messages, loaded one API and version at a time.

kio's classes are generated from Kafka 4.3's own definitions: they say which fields a version has, and requests are
instances of them (`wire.reading`). Answers are plain dicts (`wire.writing`), so that a handler is written once for all
versions of its API; building kio's instances and writing them took three times as long.

kio imports a module per API and version; nothing here loads one before a client asks for it, since start-up is part
of the product.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any

from mainstem.wire.fields import Buffer, take_apart
from mainstem.wire.kafka import EntityType, api_key_map, schema_name_map
from mainstem.wire.reading import Reader, read_request, struct_reader
from mainstem.wire.writing import Encoded, Known, Writer, struct_writer


def supported_versions(api_key: int) -> range:
    """The versions of an API that the codec knows; empty if it does not know the API."""
    versions = schema_name_map[api_key_map[api_key]] if api_key in api_key_map else ()
    return range(min(versions), max(versions) + 1) if versions else range(0)


@cache
def schema(api_key: int, version: int, kind: EntityType) -> type[Any]:
    """The kio class of a request or an answer."""
    module, _, name = schema_name_map[api_key_map[api_key]][version][kind].partition(":")  # type: ignore[index]
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


def decode_request(api_key: int, version: int, data: Buffer, position: int = 0) -> Any:
    """The kio entity of the request whose body starts at byte `position`.

    Bytes behind it are not looked at, as in Kafka: librdkafka 2.16 sends three too many with Metadata.

    Raises:
        MalformedFrame: the body is not what this version says, or has more than `MOST_ITEMS` items.
    """
    return read_request(_reader(api_key, version, EntityType.request), data, position)


def decode_response(api_key: int, version: int, data: Buffer, position: int = 0) -> Any:
    """The kio entity of an answer, for tests and tools.

    Raises:
        MalformedFrame: the body is not what this version says.
    """
    return _reader(api_key, version, EntityType.response)(data, position, len(data))[0]


def encode_response(api_key: int, version: int, message: Mapping[str, Any]) -> bytearray:
    """The body of an answer; see `broker.handlers` for what `message` may hold."""
    body, *others = encode_chunks(api_key, version, message)
    for each in others:
        body += each
    return body


def encode_chunks(api_key: int, version: int, message: Mapping[str, Any]) -> list[bytearray]:
    """The same in parts: one, or three around items that are encoded already."""
    buffer = bytearray()
    _writer(api_key, version, EntityType.response)(buffer, message)
    encoded = next((value for value in message.values() if isinstance(value, Encoded)), None)
    if encoded is None:
        return [buffer]
    return [buffer[: encoded.position], encoded.data, buffer[encoded.position :]]


def encode_item(encoded: Encoded, api_key: int, version: int, field: str, item: Mapping[str, Any]) -> None:
    """Append one item of an answer's array `field`: a large answer is made of it piece by piece."""
    _item_writer(api_key, version, field)(encoded.data, item)
    encoded.count += 1


def encode_request(api_key: int, version: int, message: Mapping[str, Any]) -> bytearray:
    """The body of a request, for tests and tools."""
    buffer = bytearray()
    _writer(api_key, version, EntityType.request)(buffer, message)
    return buffer


@cache
def field_names(api_key: int, version: int) -> frozenset[str]:
    """The top-level fields of an answer."""
    return frozenset(field.name for field in fields(schema(api_key, version, EntityType.response)))


@cache
def _reader(api_key: int, version: int, kind: EntityType) -> Reader:
    return struct_reader(schema(api_key, version, kind))


@cache
def _writer(api_key: int, version: int, kind: EntityType) -> Writer:
    return struct_writer(schema(api_key, version, kind), _known(api_key, kind))


@cache
def _item_writer(api_key: int, version: int, field: str) -> Writer:
    answer = fields(schema(api_key, version, EntityType.response))
    item = next(take_apart(each.type)[0] for each in answer if each.name == field)
    return struct_writer(item, _known(api_key, EntityType.response), f"{field}.")


def _known(api_key: int, kind: EntityType) -> Known:
    @cache
    def known(path: str, name: str) -> bool:
        for each in supported_versions(api_key):
            kinds: list[Any] = [schema(api_key, each, kind)]
            for step in path.split(".")[:-1]:
                kinds = [
                    take_apart(field.type)[0] for struct in kinds for field in fields(struct) if field.name == step
                ]
            if any(field.name == name for struct in kinds for field in fields(struct)):
                return True
        return False

    return known
