"""In which partition a coordinator's topic keeps what belongs to a name, and what a start does with records elsewhere.

Kafka takes the absolute value of Java's `String.hashCode` modulo the number of partitions; so Kafka finds on a copy of
these partitions what they keep. Records of an earlier log lie by `hashCode & 0x7fffffff`: half of all names elsewhere.
When all have been moved, that is stored in partition 0, under a key of a version that Kafka's own readers skip::

    key    version int16 (0x4D53) │ "in_place"
    value  version int16 (0)
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from typing import Final, TypeAlias

from mainstem.broker.fields import Writer
from mainstem.core import TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import PartitionLog
from mainstem.log.errors import StorageError
from mainstem.records import Record, build_batch

Stored: TypeAlias = tuple[bytes | None, int, TopicPartition]
"""A record's value (None: a tombstone), its offset and where it is."""

_BATCH_BYTES: Final = 2**20
_KEY_VERSION: Final = 0x4D53

log = get_logger()


def _encode_key() -> bytes:
    writer = Writer(_KEY_VERSION)
    writer.string("in_place")
    return writer.done()


_IN_PLACE: Final = _encode_key()


def place_of(name: str, partitions: int) -> int:
    """The partition that keeps what belongs to a group, a transactional id or a share partition."""
    return java_hash(name) % partitions


def earlier_place_of(name: str, partitions: int) -> int:
    """The partition that kept it in an earlier log."""
    return (_hash_code(name) & 0x7FFFFFFF) % partitions


def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`; 0 where it has none."""
    value = _hash_code(text)
    if value == 0x80000000:
        return 0
    return value if value < 0x80000000 else 0x100000000 - value


def _hash_code(text: str) -> int:
    """The 32 bits of Java's `String.hashCode`."""
    value = 0
    data = text.encode("utf-16-be")
    for i in range(0, len(data), 2):
        value = (31 * value + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    return value


class Unread:
    """Which partitions of a coordinator's topic a start could not read, and so of which names it knows nothing."""

    def __init__(self, partitions: int) -> None:
        self.errors: dict[int, StorageError] = {}
        """By partition."""
        self.all_moved = False
        """Nothing lies any more where an earlier log has kept it."""
        self._partitions = partitions

    def __bool__(self) -> bool:
        return bool(self.errors)

    def reason(self, name: str) -> StorageError | None:
        """Why it is not known what belongs to a name; None: it is."""
        if not self.errors:
            return None
        error = self.errors.get(place_of(name, self._partitions))
        if error is None and not self.all_moved:
            error = self.errors.get(earlier_place_of(name, self._partitions))
        return error


def placing(
    partitions: int, versions: Container[int], where: Callable[[str, int], int]
) -> Callable[[bytes], int | None]:
    """Tells `where` a record's key belongs by the name that it begins with (int16 version, int16 length, UTF-8); None:
    it is of another version, or not readable, and stays where it is.
    """
    known: dict[bytes, int | None] = {}

    def place(key: bytes) -> int | None:
        end = 4 + int.from_bytes(key[2:4], "big")
        if int.from_bytes(key[:2], "big") not in versions or len(key) < end:
            return None
        name = key[4:end]
        if name not in known:
            try:
                known[name] = where(name.decode(), partitions)
            except UnicodeDecodeError:
                known[name] = None
        return known[name]

    return place


async def put_in_place(
    logs: Sequence[PartitionLog],
    read: Mapping[int, Mapping[bytes, Stored]],
    unread: Unread,
    versions: Container[int],
    now_ms: int,
    *,
    left: Set[bytes] = frozenset(),
) -> dict[bytes, Stored]:
    """The last record of each key, from those of each partition that could be `read`. Records with keys of `versions`
    that lie elsewhere are moved to where they belong, durably on return: what is there already is newer. Keys in `left`
    stay: something else is about to come to them.

    1. The copies are durable. 2. The records are deleted where they were. A crash in between leaves both, a full disk
    those that could not be moved: the next start does the rest. 3. When there is no rest, that is stored.

    What belongs to a name of which something is `unread` is left out: who asks for it waits for the repair. Where it
    was kept by an earlier log counts until all was moved once.
    """
    place, earlier = placing(len(logs), versions, place_of), placing(len(logs), versions, earlier_place_of)
    unread.all_moved = any(_IN_PLACE in own for own in read.values())
    latest: dict[bytes, Stored] = {}
    strays: dict[tuple[int, int], dict[bytes, Stored]] = {}
    for number, own in read.items():
        for key, stored in own.items():
            to = place(key)
            if unread and not unread.all_moved and earlier(key) in unread.errors:
                continue
            if to is None or to == number:
                latest[key] = stored
            else:
                strays.setdefault((number, to), {})[key] = stored
    stay = bool(unread or left)
    for (number, to), found in strays.items():
        if to not in read:
            continue
        missing = {key: stored for key, stored in found.items() if stored[0] is not None and key not in latest}
        latest |= missing
        moving = [key for key, stored in found.items() if stored[0] is not None and key not in left]
        partition, target = str(logs[number].topic_partition), str(logs[to].topic_partition)
        try:
            for batch in _batches([Record(0, now_ms, key, found[key][0]) for key in moving if key in missing]):
                appended = await logs[to].append(build_batch(batch))
                for offset, record in enumerate(batch, appended.base_offset):
                    latest[record.key or b""] = record.value, offset, logs[to].topic_partition
            for batch in _batches([Record(0, now_ms, key, None) for key in moving]):
                await logs[number].append(build_batch(batch))
        except StorageError as error:
            log.warning("coordinator_records_not_moved", partition=partition, to=target, reason=str(error))
            stay = True
            continue
        if moving:
            log.info("coordinator_records_moved", partition=partition, to=target, records=len(moving))
    if not stay and not unread.all_moved:
        await _store_all_moved(logs[0], now_ms)
    return latest


async def _store_all_moved(partition_log: PartitionLog, now_ms: int) -> None:
    """Without it what may be where it was before is looked for there, as long as the next start can read it."""
    try:
        await partition_log.append(build_batch([Record(0, now_ms, _IN_PLACE, Writer(0).done())]))
    except StorageError as error:
        log.warning("coordinator_records_not_moved", partition=str(partition_log.topic_partition), reason=str(error))


def _batches(records: Sequence[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    room = _BATCH_BYTES
    for record in records:
        size = len(record.key or b"") + len(record.value or b"")
        if batch and size > room:
            yield batch
            batch, room = [], _BATCH_BYTES
        batch.append(record)
        room -= size
    if batch:
        yield batch
