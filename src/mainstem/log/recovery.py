"""From the files to the partitions, at start: checkpoint, then journal, then what lies behind both.

What the checkpoint counts is not read again: sizes are compared, bytes are checked when they are read. What the journal
holds is brought to the segments where it is missing there. What a segment holds behind that was never promised: whole
batches stay, a torn one is cut off. What was promised and is not there takes its partition offline, in plain sight:
then the checkpoint keeps its words of it, and what the journal says of it is held in a file until a start succeeds.
"""

import functools
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec
from crc32c import crc32c

from mainstem.core import CorruptData, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import checkpoint as checkpoints
from mainstem.log import replay
from mainstem.log.checkpoint import Checkpoint, PartitionState, SegmentState
from mainstem.log.compaction import CLEANED, Replacement
from mainstem.log.disk import Disk, File
from mainstem.log.errors import CorruptFile, CorruptSegment, StorageError
from mainstem.log.journal import (
    CREATE,
    DATA,
    DELETE,
    LOG_START,
    NAMES,
    REPLACE,
    Entry,
    Frame,
    decode_frames,
    encode_frames,
    read_frames,
)
from mainstem.log.metadata import PARTITION_METADATA, decode_topic_id, encode_topic_id
from mainstem.log.partition import PartitionLog
from mainstem.log.segment import LOG, SUFFIXES, BadBatch, Segment, file_name
from mainstem.log.writer import FULL, NOT_OPENED
from mainstem.records import CorruptBatch, decode_header, iter_headers
from mainstem.records.batch import HEADER, PREFIX

log = get_logger()

DELETED = "-delete"
HELD = ".held"

MakePartition = Callable[[TopicPartition, UUID], PartitionLog]
Key = tuple[UUID, int]


class Recovered(msgspec.Struct, frozen=True):
    """What a data directory holds."""

    partitions: list[PartitionLog]
    kept: dict[TopicPartition, msgspec.Raw]
    """The checkpoint's own words about partitions: of those that are offline they stay."""
    generation: int
    """The journal may begin with this one."""
    sequence: int
    clean: bool


def recover(path: Path, disk: Disk, make_partition: MakePartition) -> Recovered:
    """Read a data directory (blocking); on return everything that is found survives a crash of the machine.

    Raises:
        CorruptFile: the checkpoint or the journal is damaged, so that no partition can be trusted.
        StorageError: the machine is short of something; nothing is lost, and the next start may have it.
        OSError: the disk failed.
    """
    saved = checkpoints.load(disk, path)
    recovery = _Recovery(path, disk, make_partition, saved)
    recovery.read_journal()
    if saved is not None:
        recovery.restore()
        recovery.replay_held()
        recovery.replay_journal()
    else:
        recovery.redo_journal()
    recovery.adopt_unknown()
    for partition in recovery.partitions.values():
        if partition.error is None:
            recovery.guard(partition, recovery.read_tail)
    return recovery.finish()


class _Recovery:
    def __init__(self, path: Path, disk: Disk, make_partition: MakePartition, saved: Checkpoint | None) -> None:
        self.path = path
        self.disk = disk
        self.make_partition = make_partition
        self.saved = saved
        self.partitions: dict[Key, PartitionLog] = {}
        self.kept: dict[TopicPartition, msgspec.Raw] = {}
        self.deleted_by: dict[Key, int] = {}
        """Sequence of the frame with the partition's last DELETE: what the journal says of it before that is moot."""
        self.gone: set[Key] = set()
        """Deleted, and not created again."""
        self.held: dict[Key, list[Frame]] = {}
        """What earlier starts could not do with a partition."""
        self.held_in: set[Path] = set()
        """The files that the checkpoint names for that."""
        self.adopted: set[PartitionLog] = set()
        self.not_brought: dict[Key, list[Entry]] = {}
        """Batches of partitions that are offline."""
        self.touched: dict[Segment, None] = {}
        self.frames: list[Frame] = []
        self.redone: dict[Path, File] = {}
        self.log_starts: dict[Key, int] = {}
        self.replaced: dict[Key, set[int]] = {}
        self.generation = saved.generation if saved else 1
        self.sequence = saved.sequence if saved else 1

    # 1. what the journal will say

    def read_journal(self) -> None:
        contents = []
        for name in NAMES:
            try:
                contents.append(self.disk.read_file(self.path / name))
            except FileNotFoundError:
                contents.append(b"")
        sequence = self.sequence if self.saved is not None else None
        self.frames = read_frames(contents, generation=self.generation, sequence=sequence)
        self.foresee(self.frames)

    def foresee(self, frames: list[Frame]) -> None:
        for sequence, entry in [(frame.sequence, entry) for frame in frames for entry in frame.entries]:
            key = (entry.topic_id, entry.partition)
            if entry.kind == LOG_START:
                self.log_starts[key] = max(self.log_starts.get(key, 0), entry.number)
            elif entry.kind == REPLACE:
                self.replaced.setdefault(key, set()).update(_replacement(entry).base_offsets)
            elif entry.kind == DELETE:
                self.deleted_by[key] = sequence
                self.gone.add(key)
            elif entry.kind == CREATE:
                self.gone.discard(key)

    # 2. what the checkpoint says

    def restore(self) -> None:
        for raw in self.saved.partitions if self.saved else []:
            state = checkpoints.decode_partition(raw)
            topic_partition = TopicPartition(state.topic, state.partition)
            partition = self.make_partition(topic_partition, UUID(hex=state.topic_id))
            self.partitions[partition.topic_id, partition.number] = partition
            self.kept[topic_partition] = raw
            replay.restore(partition, state)
            self.guard(partition, partial(self.read_held, state=state))
            self.guard(partition, partial(self.check_files, state=state))
            self.guard(partition, self.check_interrupted)

    def read_held(self, partition: PartitionLog, state: PartitionState) -> None:
        if state.held:
            path = partition.directory / file_name(state.held, HELD)
            self.held_in.add(path)
            frames = decode_frames(self.disk.read_file(path), path)
            self.held[partition.topic_id, partition.number] = frames
            self.foresee(frames)

    def guard(self, partition: PartitionLog, step: Callable[[PartitionLog], None]) -> None:
        """Run a step of the recovery; where it finds damage, the partition is offline and the others go on.

        Raises:
            StorageError: no file is at fault, the machine is short of something: a later start may have it.
        """
        try:
            step(partition)
        except (CorruptData, OSError) as error:
            if isinstance(error, OSError) and error.errno in FULL + NOT_OPENED:
                hint = "nothing is lost: see to room on the disk, memory and file descriptors, then start again"
                raise StorageError(f"{partition.topic_partition}: {error}", hint=hint) from error
            failure = StorageError(f"{partition.topic_partition}: {error}", hint=partition.repair_hint)
            log.error("partition_offline", partition=str(partition.topic_partition), error=str(error))  # noqa: TRY400 - damage is told in one line, no traceback
            partition.go_offline(failure)
            partition.recovered = False

    def check_files(self, partition: PartitionLog, state: PartitionState) -> None:
        """Every segment is there, with the bytes that were durable, unless the journal says that it went."""
        key = (partition.topic_id, partition.number)
        if key in self.deleted_by:
            return
        replaced = self.replaced.get(key, set())
        for segment in state.segments:
            if segment.size and segment.base_offset not in replaced and self.is_needed(partition, segment):
                self.check_size(partition.directory / file_name(segment.base_offset, LOG), segment.size)

    def is_needed(self, partition: PartitionLog, segment: SegmentState | Segment) -> bool:
        """Not where all its records are deleted; but the last one's file, while it is there: others may follow them."""
        if segment.next_offset > self.log_start_of(partition):
            return True
        last = partition.segments[-1]
        return segment.base_offset == last.base_offset and self.disk.exists(last.path)

    def check_interrupted(self, partition: PartitionLog) -> None:
        """A start may have found damage, held what the journal says, and been killed while it brought that to the
        segments: their sizes are right since.
        """
        names = [path for path in list_files(self.disk, partition.directory) if path.suffix == HELD]
        if any(path not in self.held_in for path in names):
            key = (partition.topic_id, partition.number)
            entries = (entry for frame in self.frames for entry in frame.entries if entry.kind == DATA)
            self.check_bytes(partition, {e.number for e in entries if (e.topic_id, e.partition) == key})

    def log_start_of(self, partition: PartitionLog) -> int:
        """Where the partition will begin once the whole journal is replayed."""
        return max(partition.log_start_offset, self.log_starts.get((partition.topic_id, partition.number), 0))

    def check_size(self, path: Path, expected: int) -> None:
        size = self.disk.file_size(path) if self.disk.exists(path) else -1
        if size < expected:
            found = "missing" if size < 0 else f"{size} bytes"
            raise CorruptSegment(f"{path}: {found}, {expected} bytes were durable")

    # 3. do what the journal says

    def replay_held(self) -> None:
        """What earlier starts could not do: now it can be done, or the partition is offline as it was."""
        for key, frames in self.held.items():
            if key in self.deleted_by:
                continue
            partition = self.partitions[key]
            entries = [entry for frame in frames for entry in frame.entries]
            bases = {entry.number for entry in entries if entry.kind == DATA}
            self.guard(partition, partial(self.check_bytes, bases=bases))
            for entry in entries:
                self.replay_entry(entry)
            partition.changed = True

    def check_bytes(self, partition: PartitionLog, bases: set[int]) -> None:
        """What was held was brought to these segments all the same: whether something is missing before it, their
        sizes do not tell any more.
        """
        for segment in partition.segments:
            if segment.base_offset in bases and self.is_needed(partition, segment):
                for _ in segment.scan():
                    pass

    def replay_journal(self) -> None:
        for frame in self.frames:
            for entry in frame.entries:
                # A deleted partition's directory is gone, or belongs to another topic of the same name by now.
                moot = frame.sequence <= self.deleted_by.get((entry.topic_id, entry.partition), 0)
                if not moot or entry.kind == DELETE:
                    self.replay_entry(entry)
                elif entry.kind == CREATE:
                    self.clear_name(entry)
            self.generation = max(self.generation, frame.generation)
            self.sequence = frame.sequence + 1

    def replay_entry(self, entry: Entry) -> None:
        key = (entry.topic_id, entry.partition)
        if entry.kind == CREATE:
            self.create(key, bytes(entry.payload[0]).decode())
            created = self.partitions[key]
            self.kept[created.topic_partition] = checkpoints.encode_partition(created.state())
            return
        partition = self.partitions.get(key)
        if partition is None:
            if key not in self.deleted_by:
                raise CorruptFile(f"journal: a change of partition {key[1]} of topic id {key[0]}, which is not there")
        elif entry.kind == DATA:
            self.replay_data(partition, entry)
        elif entry.kind == LOG_START:
            replay.move_log_start(partition, entry.number)
        elif entry.kind == REPLACE:
            self.guard(partition, partial(self.replay_replacement, entry=entry))
        elif entry.kind == DELETE:
            self.delete(key, partition)
        else:
            raise CorruptFile(f"journal: an entry of kind {entry.kind}", hint="use the newer program")

    # or, without a checkpoint: bring the files to where the journal says they are, and read them afterwards

    def redo_journal(self) -> None:
        """Do with files only what the journal says; much of it was done long ago, and is found done."""
        directories: dict[Key, Path] = {}
        for path in self.disk.list(self.path):
            number = path.name.rpartition("-")[2]
            topic_id = read_topic_id(self.disk, path) if self.disk.is_directory(path) and number.isdigit() else None
            if topic_id is not None:
                directories[topic_id, int(number)] = path
        for frame in self.frames:
            for entry in frame.entries:
                key = (entry.topic_id, entry.partition)
                if frame.sequence > self.deleted_by.get(key, 0):
                    self.redo_entry(entry, directories)
                elif entry.kind == CREATE:
                    self.clear_name(entry)
            self.generation = max(self.generation, frame.generation)
            self.sequence = frame.sequence + 1
        for file in self.redone.values():
            file.sync()

    def redo_entry(self, entry: Entry, directories: dict[Key, Path]) -> None:
        key = (entry.topic_id, entry.partition)
        if entry.kind == CREATE and key not in directories:
            self.create(key, bytes(entry.payload[0]).decode())
            directories[key] = self.partitions.pop(key).directory
        directory = directories.get(key)
        if directory is None:
            log.error("journal_entry_without_partition", topic_id=str(key[0]), partition=key[1], kind=entry.kind)
        elif entry.kind == REPLACE:
            base_offset, *others = _replacement(entry).base_offsets
            path = directory / file_name(base_offset, LOG)
            cleaned = path.with_name(path.name + CLEANED)
            if self.disk.exists(cleaned) and self.is_whole(cleaned, _replacement(entry).state):
                self.disk.rename(cleaned, path)
            for other in others:
                self.disk.unlink(directory / file_name(other, LOG))
        elif entry.kind == DATA:
            self.redo_data(directory / file_name(entry.number, LOG), entry)

    def is_whole(self, cleaned: Path, state: SegmentState) -> bool:
        """It is what the journal speaks of, not what a later compaction had begun."""
        data = self.disk.read_file(cleaned)
        found = 0
        try:
            position = 0
            for header in iter_headers(data):
                found = crc32c(memoryview(data)[position : position + PREFIX.size], found)
                position += header.size
        except CorruptBatch:
            return False
        return len(data) == state.size and ((found or 1) == state.offsets_crc or not data)

    def redo_data(self, path: Path, entry: Entry) -> None:
        key = (entry.topic_id, entry.partition)
        data = memoryview(entry.payload[0])
        log_start = self.log_starts.get(key, 0)
        if self.gone_with(log_start, path, entry) or entry.number in self.replaced.get(key, ()):
            return
        file = self.redone.get(path) or self.disk.open(path, create=True)
        if file.read(len(data), entry.position) != data:
            file.write([data], entry.position)
        self.redone[path] = file  # what is there already may be in the page cache alone

    def gone_with(self, log_start: int, path: Path, entry: Entry) -> bool:
        """A segment's file was deleted with all before the log start offset, or is to be deleted again.

        Not where the journal has more of it: then its name was not durable when the power went.
        """
        if entry.number >= log_start or self.disk.exists(path):
            return False
        return self.journaled_to[entry.topic_id, entry.partition, entry.number] <= log_start

    @functools.cached_property
    def journaled_to(self) -> dict[tuple[UUID, int, int], int]:
        """By topic id, partition and base offset: where what the journal has of a segment ends. Only where a segment is
        missing somebody asks, and then all headers are read once more.
        """
        found: dict[tuple[UUID, int, int], int] = {}
        for frame in itertools.chain(self.frames, *self.held.values()):
            for entry in frame.entries:
                if entry.kind == DATA:
                    place = (entry.topic_id, entry.partition, entry.number)
                    end = max(header.next_offset for header in iter_headers(memoryview(entry.payload[0])))
                    found[place] = max(found.get(place, 0), end)
        return found

    def create(self, key: Key, topic: str) -> None:
        topic_partition = TopicPartition(topic, key[1])
        partition = self.make_partition(topic_partition, key[0])
        create_files(self.disk, partition)
        sync_files(self.disk, partition.directory)
        self.partitions[key] = partition

    def delete(self, key: Key, partition: PartitionLog) -> None:
        del self.partitions[key]
        self.kept.pop(partition.topic_partition, None)
        if read_topic_id(self.disk, partition.directory) == key[0]:
            self.disk.remove_tree(partition.directory)

    def clear_name(self, entry: Entry) -> None:
        """Of a partition that was made and deleted since the checkpoint a directory may be left, its id empty."""
        topic_partition = TopicPartition(bytes(entry.payload[0]).decode(), entry.partition)
        directory = self.path / str(topic_partition)
        others = {partition.directory for partition in self.partitions.values()}
        if directory not in others and self.disk.exists(directory) and read_topic_id(self.disk, directory) is None:
            self.disk.remove_tree(directory)

    def replay_replacement(self, partition: PartitionLog, entry: Entry) -> None:
        replacement = _replacement(entry)
        for gone in replay.exchange(partition, replacement):
            gone.unlink()
        state = replacement.state
        if state.next_offset <= self.log_start_of(partition):
            return  # it was deleted in its turn
        path = partition.directory / file_name(state.base_offset, LOG)
        self.check_size(path, state.size)
        if self.disk.file_size(path) != state.size:
            raise CorruptSegment(f"{path}: {self.disk.file_size(path)} bytes, compaction left {state.size}")

    def replay_data(self, partition: PartitionLog, entry: Entry) -> None:
        """Bring a round's batches to the segment, where they are not there yet, and count them in."""
        data = memoryview(entry.payload[0])

        def write_and_count(partition: PartitionLog) -> None:
            path = partition.directory / file_name(entry.number, LOG)
            gone = self.gone_with(self.log_start_of(partition), path, entry)
            if not gone:
                self.catch_up(partition, entry.number, entry.position)
            segment = replay.active_segment(partition, entry.number)
            if not gone:
                if self.disk.exists(path):  # what its topic trusted the page cache with
                    self.count_batches(partition, segment, entry.position)
                if segment.size != entry.position:
                    raise CorruptSegment(f"{path}: {segment.size} bytes, the journal goes on at {entry.position}")
                if segment.file_to_write(entry.position).read(len(data), entry.position) != data:
                    segment.file.write([data], entry.position)
                    self.touched[segment] = None
            headers = list(iter_headers(data))
            position = 0
            for header in headers:
                replay.count_in(partition, header, data[position : position + header.size])
                position += header.size

        if partition.error is None:
            self.guard(partition, write_and_count)
        if partition.error is not None:
            self.not_brought.setdefault((entry.topic_id, entry.partition), []).append(entry)

    def catch_up(self, partition: PartitionLog, base_offset: int, position: int) -> None:
        """Count in what lies before `position`: its topic trusted the page cache for a while, then it was synced."""
        replaced = self.replaced.get((partition.topic_id, partition.number), set())
        if not partition.segments or partition.segments[-1].base_offset != base_offset:
            self.skip_deleted(partition, base_offset)
        if not partition.segments:  # the journal made it, and may speak of a later one first
            replay.active_segment(partition, partition.log_end_offset)
        while True:
            segment = partition.segments[-1]
            if segment.base_offset == base_offset:
                self.count_batches(partition, segment, position)
                return
            if partition.log_end_offset == base_offset:
                return
            # It may have gone with the log start offset, or be the one that compaction wrote: then all of it is known.
            if self.disk.exists(segment.path) and segment.base_offset not in replaced:
                self.count_batches(partition, segment, self.disk.file_size(segment.path))
            if partition.log_end_offset == base_offset:
                return
            following = partition.directory / file_name(partition.log_end_offset, LOG)
            if following == segment.path or not self.disk.exists(following):
                raise CorruptSegment(
                    f"{partition.directory}: ends at offset {partition.log_end_offset},"
                    f" the journal goes on with the segment of {base_offset}"
                )
            replay.active_segment(partition, partition.log_end_offset)

    def skip_deleted(self, partition: PartitionLog, most: int) -> None:
        """Go on at the last segment, up to `most`, before which all is deleted: what lies before it is there or not."""
        until = min(self.log_start_of(partition), most)
        bases = [int(p.stem) for p in self.disk.list(partition.directory) if p.suffix == LOG and p.stem.isdigit()]
        found = max((base for base in [*bases, most] if base <= until), default=-1)
        if partition.log_end_offset < found:
            partition.log_end_offset = found
            replay.active_segment(partition, found)

    def count_batches(self, partition: PartitionLog, segment: Segment, end: int) -> None:
        """Check and count in what the segment holds up to `end`."""
        if segment.size >= end:
            return
        whole, offsets_crc, dense = segment.size == 0, 0, True
        try:
            for position, header, batch in segment.scan(segment.size, end):
                dense = dense and header.base_offset == segment.next_offset
                offsets_crc = crc32c(batch[: PREFIX.size], offsets_crc)
                if header.base_offset < partition.log_end_offset:
                    raise BadBatch(
                        f"{segment.path}: position {position}: offset {header.base_offset},"
                        f" expected {partition.log_end_offset} or later",
                        position,
                    )
                # Without a checkpoint a batch may be of any age, and only its producer's own timestamp says which.
                replay.count_in(
                    partition, header, batch, append_ms=header.max_timestamp if self.saved is None else None
                )
                self.touched[segment] = None
        finally:
            if whole and not dense:  # compaction wrote it, and without a checkpoint nothing else says so
                segment.offsets_crc = offsets_crc or 1

    # 4. what lies behind both

    def read_tail(self, partition: PartitionLog) -> None:
        """Count in what was written and never promised; the first batch that is not whole ends it."""
        if partition.segments:
            self.read_segment_tail(partition, partition.segments[-1])
        log_start = partition.log_start_offset
        for path in self.disk.list(partition.directory):
            base_offset = int(path.stem) if path.suffix == LOG and path.stem.isdigit() else -1
            if partition.log_end_offset < base_offset <= log_start:  # what lies before it is deleted, there or not
                partition.log_end_offset = base_offset
            starts_here = base_offset == partition.log_end_offset
            if starts_here and path not in [segment.path for segment in partition.segments[-1:]]:
                self.read_segment_tail(partition, replay.active_segment(partition, base_offset))
        self.reach_log_start(partition)
        known = {segment.path_of(suffix) for segment in partition.segments for suffix in SUFFIXES}
        for path in self.disk.list(partition.directory):
            spent = path.suffix == HELD and path not in self.held_in  # what it held is in a checkpoint
            unfinished = spent or path.suffix in (CLEANED, ".swap", ".deleted")
            if unfinished or (path.suffix in SUFFIXES and path not in known):
                log.info("leftover_removed", path=str(path))
                self.disk.unlink(path)

    def read_segment_tail(self, partition: PartitionLog, segment: Segment) -> None:
        size = self.disk.file_size(segment.path) if self.disk.exists(segment.path) else 0
        if size <= segment.size:
            return
        try:
            self.count_batches(partition, segment, size)
        except BadBatch as error:
            self.refuse_hole(partition, segment, error, size)
            log.warning(
                "torn_tail_truncated",
                path=str(segment.path),
                position=error.position,
                bytes=size - error.position,
                reason=str(error),
            )
            segment.file.truncate(error.position)
            self.touched[segment] = None

    def refuse_hole(self, partition: PartitionLog, segment: Segment, error: BadBatch, size: int) -> None:
        """Without the checkpoint's words nothing tells a torn tail from damage but what follows it."""
        if partition in self.adopted and _valid_batch_after(segment, error.position, size):
            raise error

    def adopt_unknown(self) -> None:
        """Partitions that neither checkpoint nor journal knows: another program's, or the checkpoint is gone."""
        known = {partition.directory for partition in self.partitions.values()}
        for entry in self.disk.list(self.path):
            if not self.disk.is_directory(entry) or entry in known:
                continue
            topic, _, number = entry.name.rpartition("-")
            topic_id = read_topic_id(self.disk, entry)
            # An empty segment's name says where the log ends, too; a creation that was not finished has none.
            has_segments = any(
                path.suffix == LOG and (self.disk.file_size(path) or path.stem != file_name(0, ""))
                for path in self.disk.list(entry)
            )
            never_promised = topic_id is not None and not has_segments and self.saved is not None
            deleted = topic_id is not None and number.isdigit() and (topic_id, int(number)) in self.gone
            if entry.name.endswith(DELETED) or never_promised or deleted:
                self.disk.remove_tree(entry)
            elif not topic or not number.isdigit() or topic_id is None:
                log.warning("directory_ignored", path=str(entry), reason="not a partition")
            else:
                self.adopt(TopicPartition(topic, int(number)), topic_id)

    def adopt(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        log.warning("partition_read_from_segments", partition=str(topic_partition))
        partition = self.make_partition(topic_partition, topic_id)
        self.partitions[topic_id, topic_partition.partition] = partition
        self.adopted.add(partition)
        self.guard(partition, self.read_all)

    def read_all(self, partition: PartitionLog) -> None:
        """Read and check every batch; only the end of the last segment may be torn."""
        paths = [path for path in self.disk.list(partition.directory) if path.suffix == LOG and path.stem.isdigit()]
        for path in paths:
            if int(path.stem) < partition.log_end_offset and not self.disk.file_size(path):
                continue  # a full disk let nothing but its name through, and later there was room elsewhere
            partition.log_end_offset = max(partition.log_end_offset, int(path.stem))
            segment = replay.active_segment(partition, int(path.stem))
            if path is paths[0]:
                partition.log_start_offset = segment.base_offset
            if path is paths[-1]:
                self.read_segment_tail(partition, segment)
            else:
                self.count_batches(partition, segment, self.disk.file_size(path))
        replay.move_log_start(partition, self.log_start_of(partition))
        self.reach_log_start(partition)

    def reach_log_start(self, partition: PartitionLog) -> None:
        """Where nothing that counts is left, its offsets are not given again.

        So it may be without a checkpoint, and where the page cache was trusted: the deletion is in the journal, and
        what was deleted was not on the disk when the power went.
        """
        gone = False
        if partition.segments and partition.log_end_offset == partition.log_start_offset:
            active = partition.segments.active
            gone = active.size > 0 and not self.disk.exists(active.path)
        if gone or partition.log_end_offset < partition.log_start_offset:
            partition.log_end_offset = partition.log_start_offset
            replay.active_segment(partition, partition.log_start_offset)

    # 5. make it durable

    def finish(self) -> Recovered:
        new = self.saved is None and not self.partitions
        clean = new or (self.saved is not None and self.saved.clean and not self.frames and not self.touched)
        for segment in self.touched:
            segment.file.sync()
        for key, partition in self.partitions.items():
            if partition.error is None:
                partition.start(bump_epoch=not clean)
            else:
                self.hold(key, partition)
                self.guard(partition, self.bring)
            if not clean and self.disk.exists(partition.directory):
                self.disk.sync_directory(partition.directory)
        if not clean:
            self.disk.sync_directory(self.path)
        partitions = list(self.partitions.values())
        return Recovered(partitions, self.kept, self.generation + 1, self.sequence, clean)

    def hold(self, key: Key, partition: PartitionLog) -> None:
        """Keep what the journal says of a partition that is offline: the journal is emptied.

        The checkpoint's words lead to the file. A crash before they are written leaves the journal as it was.
        """
        deleted_by = self.deleted_by.get(key, 0)
        found = [
            msgspec.structs.replace(frame, entries=entries)
            for frame in self.frames
            if frame.sequence > deleted_by and (entries := [entry for entry in frame.entries if _changes(entry, key)])
        ]
        words = self.kept.get(partition.topic_partition)
        if not found or words is None:  # without words it is read from its segments, to which all was brought
            return
        path = partition.directory / file_name(found[-1].sequence, HELD)
        self.disk.make_directory(partition.directory)
        self.disk.write_atomically(path, encode_frames([*self.held.get(key, []), *found]))
        state = msgspec.structs.replace(checkpoints.decode_partition(words), held=found[-1].sequence)
        self.kept[partition.topic_partition] = checkpoints.encode_partition(state)
        log.warning("journal_held", partition=str(partition.topic_partition), path=str(path))

    def bring(self, partition: PartitionLog) -> None:
        """Write what the journal says of a partition that is offline to its segments: a repair looks for it there.

        Only once it is held: where bytes are missing before these, a segment's size does not tell so any more.
        """
        segments: dict[Path, Segment] = {}
        for entry in self.not_brought.get((partition.topic_id, partition.number), []):
            path, data = partition.directory / file_name(entry.number, LOG), memoryview(entry.payload[0])
            if self.gone_with(self.log_start_of(partition), path, entry):
                continue
            segment = segments.setdefault(path, Segment(partition.directory, entry.number, partition.segments.files))
            file = segment.file_to_write(0)  # also where the beginning is missing: the file may be restored
            if file.read(len(data), entry.position) != data:
                file.write([data], entry.position)
        for segment in segments.values():
            segment.file.sync()


def _changes(entry: Entry, key: Key) -> bool:
    return (entry.topic_id, entry.partition) == key and entry.kind in (DATA, LOG_START, REPLACE)


def _replacement(entry: Entry) -> Replacement:
    try:
        return msgspec.msgpack.decode(entry.payload[0], type=Replacement)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"journal: what replaces segments of {entry.topic_id}-{entry.partition}: {error}") from None


def _valid_batch_after(segment: Segment, position: int, size: int) -> bool:
    """Some whole batch begins after `position`: then what is there is damage, not the end of the last write."""
    data = segment.file.read(size - position, position)
    for start in range(1, len(data) - HEADER.size):
        if data[start + 16] != 2:
            continue
        try:
            decode_header(data, start)
        except CorruptBatch:
            continue
        return True
    return False


def create_files(disk: Disk, partition: PartitionLog) -> None:
    """The partition's directory and its topic id, in Kafka's form (not synced)."""
    found = read_topic_id(disk, partition.directory)
    if found == partition.topic_id:  # not written over: a power cut would leave it empty
        return
    if disk.exists(partition.directory):  # a deleted topic's of the same name
        disk.remove_tree(partition.directory)
    disk.make_directory(partition.directory)
    content = f"version: 0\ntopic_id: {encode_topic_id(partition.topic_id)}\n"
    disk.write_file(partition.directory / PARTITION_METADATA, content.encode())


def sync_files(disk: Disk, directory: Path) -> None:
    """Make what `create_files` made durable, except for the directory's own name."""
    disk.open(directory / PARTITION_METADATA).sync()
    disk.sync_directory(directory)


def list_files(disk: Disk, directory: Path) -> list[Path]:
    """What is in a partition's directory; nothing where there is none."""
    return disk.list(directory) if disk.exists(directory) else []


def read_topic_id(disk: Disk, directory: Path) -> UUID | None:
    """The topic id in a partition's directory; None where there is none."""
    try:
        return decode_topic_id(disk.read_file(directory / PARTITION_METADATA))
    except (FileNotFoundError, NotADirectoryError, CorruptFile):
        return None
