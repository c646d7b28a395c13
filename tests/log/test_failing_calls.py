"""Each call of the file seam fails once, in the middle of everything that a log directory does.

Whatever it is, and whatever with: what was acknowledged is there, the log goes on or says that it does not, and the
next start finds it all.
"""

import asyncio
import errno
import shutil
import tempfile
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from mainstem.core import ManualClock, TopicPartition
from mainstem.core.logging import configure
from mainstem.log import CorruptFile, LogConfig, LogDirectory, StorageError, TopicConfig, housekeeping
from mainstem.log import round as rounds
from tests.log.simulated_disk import DirectoryNode, SimulatedDisk, SimulatedFile, adversary
from tests.log.support import abandon, batch, open_log, read_all, sequenced

CONFIG = LogConfig(read_threads=1, sync_threads=1, journal_bytes=30_000, housekeeping_interval_ms=10**9)
PLAIN, COMPACTED, TRUSTING, GONE = (TopicPartition(name, 0) for name in ("plain", "compacted", "trusting", "gone"))
TOPICS = {
    PLAIN: TopicConfig(segment_bytes=900, index_interval_bytes=200),
    COMPACTED: TopicConfig(
        cleanup_policy="compact", segment_bytes=300, index_interval_bytes=200, min_cleanable_dirty_ratio=0.0
    ),
    TRUSTING: TopicConfig(segment_bytes=900, flush_messages=3),
    GONE: TopicConfig(),
}
ERRORS = [errno.EIO, errno.ENOSPC, errno.EMFILE]
OPENING = ("open", "read_file", "write_file", "list", "sync_directory")
"""Only these may lack a file descriptor: the first of them from the number on."""
STRIDE = 151
CALLS_ON_A_FILE = ("write", "read", "sync", "truncate", "size")
CALLS_ON_A_DISK = (
    "open", "read_file", "write_file", "rename", "unlink", "make_directory", "remove_tree", "list", "file_size",
    "sync_directory",
)  # fmt: skip


class FailingDisk(SimulatedDisk):
    """Counts the calls of the seam, and lets one fail; a write has written half of its bytes by then."""

    def __init__(self, root: Path, tree: DirectoryNode | None = None, *, fail_at: int = -1, error: int = 0) -> None:
        super().__init__(root, tree)
        self.calls = 0
        self.fail_at = fail_at
        self.error = error
        self.failed = ""

    def count(self, call: str, path: Path) -> None:
        with self.lock:
            self.calls += 1
            if (
                self.calls - 1 >= self.fail_at >= 0
                and not self.failed
                and (self.error != errno.EMFILE or call in OPENING)
            ):
                self.failed = (
                    f"call {self.calls - 1}, {call} of {path.relative_to(self.root)}: {errno.errorcode[self.error]}"
                )
                raise OSError(self.error, errno.errorcode[self.error], str(path))

    def open(self, path, *, create=False):
        self.count("open", path)
        file = super().open(path, create=create)
        return FailingFile(self, path, file.node)


def counted(call: str):
    plain = getattr(SimulatedDisk, call)

    def counting(self, path, *arguments):
        self.count(call, path)
        return plain(self, path, *arguments)

    return counting


for each in CALLS_ON_A_DISK[1:]:
    setattr(FailingDisk, each, counted(each))


class FailingFile(SimulatedFile):
    def write(self, pieces, position):
        data = b"".join(pieces)
        try:
            self.disk.count("write", self.path)
        except OSError:
            super().write([data[: len(data) // 2]], position)
            raise
        super().write([data], position)

    def read(self, size, position):
        self.disk.count("read", self.path)
        return super().read(size, position)

    def sync(self):
        try:
            self.disk.count("sync", self.path)
        except OSError:
            self.node.fail_to_sync()
            raise
        super().sync()

    def truncate(self, size):
        self.disk.count("truncate", self.path)
        super().truncate(size)

    def size(self):
        self.disk.count("size", self.path)
        return super().size()


class Story:
    """What is done to a log directory over three starts, and what was promised."""

    def __init__(self, path: Path, disk: FailingDisk, seed: int) -> None:
        self.path = path
        self.disk = disk
        self.random = Random(seed)
        self.clock = ManualClock()
        self.log: LogDirectory
        self.appended: dict[TopicPartition, list[tuple[bytes, bytes, bool]]] = {each: [] for each in TOPICS}
        """Key, value, whether it was acknowledged; in order."""
        self.refused: set[bytes] = set()
        """Of which the log said that nothing was appended."""
        self.starts = dict.fromkeys(TOPICS, 0)
        """Log start offsets that were acknowledged."""
        self.deleted = False
        self.ids = (UUID(int=number) for number in range(1, 1_000))
        self.number = 0

    async def run(self) -> None:
        for end in (self._close, self._kill, self._close):
            await self._start()
            await self._life()
            await end()
        for attempt in range(2):  # the call that fails may be one of these
            await self._start()
            try:
                await self._check()
                break
            except StorageError:
                if attempt:
                    raise
            finally:
                await self.log.close()

    # -- starts and ends

    async def _start(self) -> None:
        """The call that fails is one: the second start meets none."""
        for attempt in range(3):
            try:
                self.log = await open_log(self.path, disk=self.disk, config=CONFIG, clock=self.clock)
            except (OSError, StorageError, CorruptFile):
                if attempt:
                    raise
                continue
            damaged = [partition.error for partition in self.log.partitions.values() if partition.error]
            if not damaged:
                break
            assert attempt < 2, damaged
            assert all("mainstem log repair" in error.hint for error in damaged)
            await self._close()
        for topic_partition, partition in self.log.partitions.items():
            partition.config = TOPICS[topic_partition]

    async def _close(self) -> None:
        await asyncio.wait_for(self.log.close(), 10)
        if self.log.failed.is_set():  # what is in the page cache alone may be gone
            self._power_cut()

    async def _kill(self) -> None:
        abandon(self.log)
        self._power_cut()

    def _power_cut(self) -> None:
        """Only of what was synced is anything promised; of topics that trust the page cache this asks for less."""
        after = self.disk.after_power_cut(adversary(self.random.getrandbits(32)))
        self.disk = _next_disk(self.disk, after)
        self.appended[TRUSTING] = [(key, value, False) for key, value, _ in self.appended[TRUSTING]]

    # -- what is done

    async def _life(self) -> None:
        for topic_partition in TOPICS:
            wanted = topic_partition not in self.log.partitions and not (topic_partition == GONE and self.deleted)
            if wanted and not await self._try(self._create, topic_partition):
                return
        for step in (
            *[self._append] * 6, self._transact, self._append, self._checkpoint, *[self._append] * 4, self._delete_records,
            self._housekeep, self._append, self._transact, self._delete_topic, self._read, self._append, self._checkpoint,
            self._read,
        ):  # fmt: skip
            if not await self._try(step):
                return

    async def _try(self, step, *arguments) -> bool:
        """Twice, since what is refused once is taken then; False where the log has said that something is wrong."""
        for attempt in range(2):
            try:
                await asyncio.wait_for(step(*arguments), 10)
            except StorageError:
                if self.log.failed.is_set() or any(each.error for each in self.log.partitions.values()):
                    return False  # the disk's failure ends the process; what a read met, the next start looks at again
                if attempt:
                    raise
            else:
                break
        return True

    async def _create(self, topic_partition: TopicPartition) -> None:
        if topic_partition not in self.log.partitions:
            await self.log.create_partition(topic_partition, next(self.ids), TOPICS[topic_partition])

    async def _append(self) -> None:
        """To all at once, so that they share a round."""
        answers = []
        for topic_partition, partition in self.log.partitions.items():
            self.number += 1
            key, value = b"k%d" % (self.number % 3), b"%d " % self.number + b"v" * self.random.choice([10, 200])
            if topic_partition == PLAIN:
                key, data = b"k", sequenced(value, sequence=self._next_sequence(1))
            else:
                data = batch(value, key=key, timestamp=self.clock.now_ms())
            try:
                answers.append((topic_partition, key, value, partition.append(data)))
            except StorageError as error:
                answers.append((topic_partition, key, value, error))
        await self._answers(answers)

    def _next_sequence(self, producer_id: int) -> int:
        known = self.log.partitions[PLAIN].producer(producer_id)
        return known.last_sequence + 1 if known else 0

    async def _answers(self, answers) -> None:
        first: StorageError | None = None
        for topic_partition, key, value, answer in answers:
            try:
                if isinstance(answer, StorageError):
                    raise answer
                await answer
            except StorageError as error:
                first = first or error
                self.appended[topic_partition].append((key, value, False))
                if "nothing was appended" in str(error):
                    self.refused.add(value)
            else:
                self.appended[topic_partition].append((key, value, True))
        if first is not None:
            raise first

    async def _transact(self) -> None:
        partition = self.log.partitions[PLAIN]
        self.number += 1
        value = b"%d in a transaction" % self.number
        data = sequenced(value, sequence=self._next_sequence(2), producer_id=2, transactional=True)
        await self._answers([(PLAIN, b"t", value, partition.append(data))])
        await partition.append_marker(2, 0, commit=True, coordinator_epoch=0)

    async def _checkpoint(self) -> None:
        await self.log.checkpoint()

    async def _delete_records(self) -> None:
        partition = self.log.partitions[PLAIN]
        before = (partition.log_start_offset + partition.high_watermark) // 2
        await housekeeping.delete_records(partition, before)
        self.starts[PLAIN] = max(self.starts[PLAIN], before)

    async def _housekeep(self) -> None:
        self.clock.advance_ms(1_000)
        await self.log.housekeep()

    async def _delete_topic(self) -> None:
        if GONE in self.log.partitions:
            self.deleted = True  # or not, if it is refused: it may be there then
            await self.log.delete_partition(GONE)
        elif not self.log.offline:
            self.deleted = False
            self.appended[GONE] = []
            await self._create(GONE)

    async def _read(self) -> None:
        for partition in self.log.partitions.values():
            await read_all(partition)
            await partition.latest_timestamp()

    # -- what must be there

    async def _check(self) -> None:
        for topic_partition, appended in self.appended.items():
            partition = self.log.partitions.get(topic_partition)
            if topic_partition == GONE and (partition is None or self.deleted):
                continue
            assert partition is not None, f"{self.disk.failed}: {topic_partition} is gone"
            records = await read_all(partition)
            there = [record.value for record in records]
            assert partition.log_start_offset >= self.starts[topic_partition]
            assert not self.refused & set(there), f"{self.disk.failed}: a refused append is there"
            if topic_partition == COMPACTED:
                self._check_keys(records, appended)
                continue
            sent = [value for _, value, _ in appended]
            assert there == [value for value in sent if value in set(there)], f"{self.disk.failed}: in another order"
            first = sent.index(there[0]) if there else len(sent)
            missing = [value for _, value, acknowledged in appended[first:] if acknowledged and value not in set(there)]
            assert not missing, f"{self.disk.failed}: {topic_partition} lost {missing}"

    def _check_keys(self, records, appended) -> None:
        """Each has a value that is no older than the last one that was acknowledged."""
        latest = {record.key: record.value for record in records}
        for key in {key for key, _, _ in appended}:
            values = [(value, acknowledged) for each, value, acknowledged in appended if each == key]
            last = max((place for place, (_, acknowledged) in enumerate(values) if acknowledged), default=None)
            if last is not None:
                newer = [value for value, _ in values[last:]]
                assert latest.get(key) in newer, f"{self.disk.failed}: {key!r} has {latest.get(key)!r}"


def _next_disk(before: FailingDisk, after: SimulatedDisk) -> FailingDisk:
    disk = FailingDisk(before.root, after.tree, fail_at=before.fail_at, error=before.error)
    disk.calls, disk.failed = before.calls, before.failed
    return disk


def play(fail_at: int, error: int) -> FailingDisk:
    path = Path(tempfile.mkdtemp(prefix="failing-calls-"))
    story = Story(path, FailingDisk(path, fail_at=fail_at, error=error), seed=fail_at)
    try:
        asyncio.run(story.run())
    except Exception as raised:
        raise AssertionError(f"{story.disk.failed}: {raised!r}") from raised
    finally:
        shutil.rmtree(path)
    return story.disk


@pytest.fixture(autouse=True)
def log_says_nothing():
    configure("tests", level="critical")
    yield
    configure("tests", level="warning")


def test_everything_is_done_where_nothing_fails():
    disk = play(-1, 0)
    assert disk.failed == ""
    assert disk.calls > 500


def _play_all(first: int, step: int, errors: list[int]) -> int:
    played = 0
    for fail_at in range(first, 10**6, step):
        for error in errors:
            disk = play(fail_at, error)
            if not disk.failed:  # that call does not come any more
                return played
            played += 1
    raise AssertionError("no end")


@pytest.mark.parametrize("placed", [False, True])
def test_some_calls_fail_once_and_nothing_is_lost(monkeypatch, placed):
    if placed:
        monkeypatch.setattr(rounds, "_LARGE", 1)
    assert sum(_play_all(number, STRIDE, [error]) for number, error in enumerate(ERRORS)) > 15


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_each_call_fails_once_and_nothing_is_lost(monkeypatch, error, placed):
    if placed:
        monkeypatch.setattr(rounds, "_LARGE", 1)
    print(f"{_play_all(0, 1, [error])} calls failed once with {errno.errorcode[error]}")
