"""What members of type `consumer` tell each other in the classic protocol: subscriptions and assignments, as bytes.

ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3: an int16 version, then plain fields; what
later versions append is not looked at.

https://github.com/apache/kafka/tree/trunk/clients/src/main/resources/common/message
"""

from collections.abc import Mapping

import msgspec

from mainstem.broker.fields import Reader, Writer

LATEST = 3


class Subscription(msgspec.Struct, frozen=True):
    """What a member says about itself when it joins."""

    version: int
    topics: tuple[str, ...] = ()
    owned: Mapping[str, frozenset[int]] = {}
    """What it has, by topic; from version 1 on."""
    rack_id: str | None = None


class EmbeddedAssignment(msgspec.Struct, frozen=True):
    """What a member is given."""

    partitions: Mapping[str, frozenset[int]]
    user_data: bytes = b""


def read_subscription(data: bytes) -> Subscription:
    """The subscription in a member's metadata.

    Raises:
        CorruptCoordinatorRecord: it is none.
    """
    reader = Reader(data)
    version = reader.int16()
    topics = tuple(reader.array(reader.required_string) or ())
    reader.blob()
    owned = _read_partitions(reader) if version >= 1 else {}
    if version >= 2:
        reader.int32()  # the generation that it has them of
    rack_id = reader.string() if version >= 3 else None
    return Subscription(version, topics, owned, rack_id)


def read_topics(data: bytes) -> tuple[str, ...]:
    """Only the topics: all that is known of a subscription whose later fields may be anybody's.

    Raises:
        CorruptCoordinatorRecord: it is no subscription.
    """
    reader = Reader(data)
    reader.int16()
    return tuple(reader.array(reader.required_string) or ())


def write_subscription(subscription: Subscription) -> bytes:
    """The bytes of a subscription, without user data and generation."""
    writer = Writer(subscription.version)
    writer.array(sorted(subscription.topics), writer.string)
    writer.blob(b"")
    if subscription.version >= 1:
        _write_partitions(writer, subscription.owned)
    if subscription.version >= 2:
        writer.int32(-1)
    if subscription.version >= 3:
        writer.string(subscription.rack_id)
    return writer.done()


def read_assignment(data: bytes) -> EmbeddedAssignment:
    """The assignment that a leader has sent; no bytes at all are no partitions.

    Raises:
        CorruptCoordinatorRecord: it is none.
    """
    if not data:
        return EmbeddedAssignment({})
    reader = Reader(data)
    reader.int16()
    return EmbeddedAssignment(_read_partitions(reader), reader.blob())


def write_assignment(version: int, partitions: Mapping[str, frozenset[int]]) -> bytes:
    """The bytes of an assignment, in the version of the member's subscription."""
    writer = Writer(min(max(version, 0), LATEST))
    _write_partitions(writer, partitions)
    writer.int32(-1)  # no user data
    return writer.done()


def _read_partitions(reader: Reader) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}

    def topic() -> None:
        name = reader.required_string()
        found[name] = found.get(name, frozenset()) | frozenset(reader.array(reader.int32) or ())

    reader.array(topic)
    return found


def _write_partitions(writer: Writer, partitions: Mapping[str, frozenset[int]]) -> None:
    def topic(name: str) -> None:
        writer.string(name)
        writer.array(sorted(partitions[name]), writer.int32)

    writer.array(sorted(partitions), topic)
