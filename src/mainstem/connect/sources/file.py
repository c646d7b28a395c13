"""A file as a source: each line once, the byte position in the same transaction as the lines.

    run:  1. fence older runs, read the position from the log   2. find the file that it speaks of, rotated or not
          3. read lines, commit them with the new position, again and again
          4. when `<path>.end` is there and all is read: state that nothing follows

Rotation by rename: the old file is read to its end, then the new one. Where it is gone before that, the source refuses
to go on, or goes on without (`on_gap`). Rotation by truncation while it runs: reading starts over at the new beginning;
what was written and cut away between two looks is gone, as for every reader of such a file. While it was away nobody
has seen a truncation: the next file may have got the inode of one that is gone.
"""

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from mainstem.client.catalog import TopicEntry, read_catalog, topic_entries
from mainstem.client.catalog_changes import change_catalog
from mainstem.client.compacted import NOT_OURS
from mainstem.client.connection import Connection
from mainstem.client.errors import Fenced, UnknownTopic
from mainstem.client.heartbeats import encode as encode_heartbeat
from mainstem.client.heartbeats import statement_about
from mainstem.client.internal import HEARTBEATS
from mainstem.client.partitioner import partition_for
from mainstem.client.topics import describe, ensure_internal_topics, topic_ids
from mainstem.client.writer import TransactionalWriter
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.connect.sources.file_lines import (
    Chunk,
    FilePosition,
    Line,
    forerunners,
    is_rewritten,
    is_same,
    moved,
    open_file,
    original,
    read_lines,
    start,
    unordered,
)
from mainstem.core import Clock, CorruptData, Retriable, SystemClock, UserError
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.registry import avro, quarantine
from mainstem.registry.client import RegisteredSchema, Registry
from mainstem.registry.errors import NotFound
from mainstem.registry.quarantine import Quarantined, quarantine_topic

log = get_logger()

STAGE = "file"
Left = Literal["read", "rewritten", "cut", "open"]
"""How the last file was left: read until nobody wrote to it any more, replaced by one that begins with all of it,
truncated before our eyes, or none of these.
"""
LINE_SCHEMA = '{"type":"record","name":"Line","fields":[{"name":"line","type":"string"}]}'
MOST_HELD = 16
"""Files that wait to be read, held open: a file that is replaced all the time is not a log."""
FILE_HEADER, POSITION_HEADER = "mainstem.file", "mainstem.position"


class UnfitTopic(UserError):
    """The topic's schema has no room for lines, or a job writes it."""


class GrewAfterItsEnd(UserError):
    """The end of the input was stated, and then more was written."""


class BytesGone(UserError):
    """The file that was being read is not there any more, and nobody knows whether it was read to its end."""


class CopyOfRead(UserError):
    """What would be read next are the bytes of a file that was read."""


class UnfitPath(UserError):
    """There is something else than a regular file at the source's path."""


class Unreadable(Retriable):
    """The file, or one that may be its forerunner, is there, and this process cannot read it."""


class FileSource:
    """One file, followed by one thread. `run` goes on until `stop` is set or something fails;
    it can be called again.
    """

    def __init__(
        self,
        name: str,
        config: FileSourceConfig,
        connection: Connection,
        registry: Registry,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.path = Path(config.path)
        self.end_path = self.path.with_name(self.path.name + ".end")
        self._connection = connection
        self._registry = registry
        self._clock = clock or SystemClock()
        self._quarantine_id: int | None = None
        self._topic_ids: dict[str, str] = {}  # of the topics in the books
        self.on_idle: Callable[[str, str], None] = lambda what, hint: None
        self._held: list[BinaryIO] = []  # what was seen at the path after the file that is read, oldest first
        self._begun: tuple[FilePosition, FilePosition] | None = None  # a file read to its end, and where it went on

    def run(self, stop: threading.Event) -> None:
        """Follow the file. Raises what the worker knows to treat; the next run goes on where the log says."""
        ensure_internal_topics(self._connection)
        self._quarantine_id = None  # that topic may have been deleted since
        partitions = self._partitions()  # before a schema is registered for a topic that nobody has declared
        self._schema = self._topic_schema()
        self._partition = partition_for(self.name.encode(), partitions)
        writer, goes_on = TransactionalWriter(self._connection, self.name), False
        try:
            state = writer.open()
            position = self._decode(state.position) if state is not None else None
            self._topic_ids = state.position.get("topics", {}) if state is not None else {}
            # Where the file before was read to its end, and the log did not take that when it was to be written.
            if self._begun is not None and position == self._begun[0]:
                position = self._begun[1]
                self._commit_position(writer, position)
            self._follow(writer, position, stop)
        except OSError as error:
            place = error.filename or self.path
            raise Unreadable(f"source {self.name}: {place}: {error.strerror or error}") from error
        except Retriable as error:  # the log is away: the next run goes on with what this one has seen
            goes_on = not (stop.is_set() or isinstance(error, Fenced))
            raise
        finally:
            if not goes_on:
                self._release()
            writer.close()

    # -- which file

    def _follow(self, writer: TransactionalWriter, position: FilePosition | None, stop: threading.Event) -> None:
        left: Left = "open"
        told = False
        while not stop.is_set():
            try:
                opened = self._open(position, left)
            except FileNotFoundError:  # renamed or deleted since its name was read: the next look finds how it is now
                if not self.path.parent.is_dir():
                    raise
                opened = None
            if opened is None:
                if position is None and not told:  # a file that was followed comes back by itself
                    self.on_idle(f"{self.path} is not there yet", "see whether its `path` is right")
                    told = True
                stop.wait(self.config.poll_ms / 1000)
                continue
            if told:
                self.on_idle("", "")
                told = False
            file, begin = opened
            if position is not None and begin != position:
                self._begun = position, begin
                try:
                    self._commit_position(writer, begin)  # that the one before is done is known for as long as it runs
                except BaseException:
                    self._held.insert(0, file)  # it may have no name any more
                    raise
            with file:
                position, left = self._read(writer, file, begin, stop)

    def _open(self, position: FilePosition | None, left: Left) -> tuple[BinaryIO, FilePosition] | None:
        """The file to read now, and from where; None while there is none."""
        if position is not None and self._held and is_same(self._held[0], position):
            return self._held.pop(0), position
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(open_file(self.path))
            except FileNotFoundError:
                file = None
            except (IsADirectoryError, NotADirectoryError) as error:
                raise UnfitPath(
                    f"source {self.name}: {self.path}: expected a file: {error.strerror}", hint="mend its `path`"
                ) from None
            if file is not None and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnfitPath(
                    f"source {self.name}: {self.path}: expected a file, found a pipe or device", hint="mend its `path`"
                )
            if file is not None and position is not None and is_same(file, position):
                self._release()
                opened.pop_all()
                return file, position
            if left == "cut":
                self._release()
            names = [] if position is None else list(forerunners(self.path, position))
            if position is not None and names:
                if left == "open" and not position.ended:
                    self._check_order(names[0], position)
                old = self._forerunner(names[0], position, left)
                if old is not None:
                    return old
            # With a name it was read to its end; without one that is known only to who has just done it.
            following = None if position is None or left == "open" else self._following(names[1:], position)
            if following is not None:
                return following
            if file is None:
                return None
            begin = start(file, position)
            if position is not None:
                seen = left == "read" or (left == "cut" and begin.inode == position.inode)
                self._starts_over(position, known=bool(names or seen or position.ended))
            if self._held:  # they came before the one at the path, or are that one
                first = self._held.pop(0)
                return first, start(first, position)
            opened.pop_all()
            return file, begin

    def _starts_over(self, position: FilePosition, *, known: bool) -> None:
        """`known`: what became of the file before."""
        if not known:
            self._check_gap(position)
        log.info("file_starts_over", source=self.name, path=str(self.path), read_before=position.position)

    def _check_gap(self, position: FilePosition) -> None:
        if self.config.on_gap == "refuse":
            raise BytesGone(
                f"source {self.name}: {self.path}: expected the file that was read up to byte {position.position}, found "
                "another one, and beside it none that is its rest",
                hint="put it back beside it, unpacked, under a name such as "
                f'{self.path.name}.1; or set on_gap = "skip" for this source: it goes on without what followed that byte',
            )
        log.warning("file_gap_skipped", source=self.name, path=str(self.path), read_to=position.position)

    def _check_order(self, old: Path, position: FilePosition) -> None:
        """Raise where `old` was rotated, and its time does not tell whether another one came after it."""
        other = unordered(self.path, old, position)
        if other is None:
            return
        if self.config.on_gap == "refuse":
            raise BytesGone(
                f"source {self.name}: {old}: expected it to be older than {self.path.name}, found a later time: whether "
                f"{other.name} came after it cannot be told",
                hint=f"set its time to that of its last line (touch -d); if {other.name} was to be read before it, or not at "
                f'all, move that away; or set on_gap = "skip" for this source: it goes on without {other.name}',
            )
        log.warning("file_gap_skipped", source=self.name, path=str(other), read_to=position.position)

    def _check_copy(self, path: Path, position: FilePosition) -> None:
        read = original(self.path, path, position)
        if read is not None:
            raise CopyOfRead(
                f"source {self.name}: {path}: expected what was written after {read.name}, found its bytes again",
                hint=f"if it is a copy, move it away from {self.path.parent}",
            )

    def _forerunner(self, name: Path, position: FilePosition, left: Left) -> tuple[BinaryIO, FilePosition] | None:
        """The file of `position` under its new name while it has unread bytes."""
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(name.open("rb"))
            # After a start nobody has waited yet for the last lines of who still writes to it.
            if left == "open" or os.fstat(file.fileno()).st_size > position.position:
                opened.pop_all()
                # A copy has an inode of its own; its bytes are those that were read of the original.
                return file, msgspec.structs.replace(position, inode=os.fstat(file.fileno()).st_ino)
        return None

    def _following(self, names: list[Path], position: FilePosition) -> tuple[BinaryIO, FilePosition] | None:
        """What came after the file of `position`: the first of `names`, or what was seen at the path, in its order."""
        if names:
            self._check_copy(names[0], position)
            file: BinaryIO = names[0].open("rb")
            if not any(os.path.sameopenfile(file.fileno(), each.fileno()) for each in self._held):
                return file, start(file, position)
            file.close()
        if not self._held:
            return None
        file = self._held.pop(0)
        return file, start(file, position)

    def _release(self) -> None:
        while self._held:
            self._held.pop().close()

    # -- reading

    def _read(
        self, writer: TransactionalWriter, file: BinaryIO, position: FilePosition, stop: threading.Event
    ) -> tuple[FilePosition, Left]:
        """Read `file` until another one takes its place or `stop` is set; the position, and how it was left."""
        quiet_since: float | None = None  # nothing new since then, and the file is no longer the one at `path`
        log.info("file_follows", source=self.name, path=file.name, position=position.position)
        while not stop.is_set():
            if not is_same(file, position):
                return position, "cut"
            replaced = self._is_replaced(file)
            waited = (
                quiet_since is not None
                and (self._clock.monotonic() - quiet_since) * 1000 >= self.config.rotation_wait_ms
            )
            if waited and self._held and is_rewritten(self.path, file, self._held[0]):
                return self._go_on_in(writer, self._held[0], position), "rewritten"
            finished = not replaced and self.config.end_marker and self.end_path.exists()
            if position.ended and finished:
                self._check_still_ended(file, position)
                stop.wait(self.config.poll_ms / 1000)
                continue
            chunk = self._chunk(file, position, at_end=finished or waited)
            if chunk.position > position.position:
                quiet_since = None
                position = self._commit(writer, file, position, chunk)
            elif finished:
                position = self._state_end(writer, position)
            elif waited:
                return position, "read"
            else:
                if replaced and quiet_since is None:
                    quiet_since = self._clock.monotonic()
                stop.wait(self.config.poll_ms / 1000)
        return position, "open"

    def _go_on_in(self, writer: TransactionalWriter, file: BinaryIO, position: FilePosition) -> FilePosition:
        """The position in `file`, which begins with all of the one that is read."""
        after = msgspec.structs.replace(position, inode=os.fstat(file.fileno()).st_ino)
        self._begun = position, after
        self._commit_position(writer, after)
        return after

    def _is_replaced(self, file: BinaryIO) -> bool:
        """Whether another file is at the path. It is held: before `file` is read to its end it may be gone from there,
        packed or deleted.
        """
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False  # renamed, and its successor is not there yet: the writer may still hold it open
        if os.path.samestat(now, os.fstat(file.fileno())):
            return False
        known = self._held and os.path.samestat(now, os.fstat(self._held[-1].fileno()))
        if not known and len(self._held) < MOST_HELD and stat.S_ISREG(now.st_mode):
            with contextlib.suppress(OSError):  # told when it is its turn
                self._held.append(open_file(self.path))
        return True

    def _chunk(self, file: BinaryIO, position: FilePosition, *, at_end: bool) -> Chunk:
        size = max(self.config.batch_bytes, self.config.max_line_bytes + 1)
        return read_lines(file, position, size=size, max_line=self.config.max_line_bytes, at_end=at_end)

    def _check_still_ended(self, file: BinaryIO, position: FilePosition) -> None:
        if self._chunk(file, position, at_end=True).position > position.position:
            raise GrewAfterItsEnd(
                f"source {self.name}: {self.path} grew beyond byte {position.position} after its end was stated",
                hint=f"remove {self.end_path} to go on with it; windows that were closed will find its rows late",
            )

    # -- writing

    def _commit(
        self, writer: TransactionalWriter, file: BinaryIO, position: FilePosition, chunk: Chunk
    ) -> FilePosition:
        after = moved(file, position, chunk)
        self._look(writer)
        writer.begin()
        name = (FILE_HEADER, str(self.path).encode())
        for line in chunk.lines:
            headers = [name, (POSITION_HEADER, str(line.position).encode())]
            value, refused = self._encode(line)
            if value is not None:
                writer.send(self.config.topic, self._partition, None, value, headers)
            else:
                refusal = self._refused(writer, line, *refused)
                writer.send(quarantine_topic(self.config.topic), 0, None, refusal, headers)
        self._commit_with(writer, after)
        return after

    def _look(self, writer: TransactionalWriter) -> None:
        """1. see that the topic is there, else producing would make one, with the log's settings  2. have the
        quarantine made anew where it is gone  3. forget what was written to others of their names.
        """
        topic, kept = self.config.topic, quarantine_topic(self.config.topic)
        found = topic_ids(self._connection, [topic, kept])
        if topic not in found:
            raise self._unknown_topic()
        if kept not in found:
            self._quarantine_id = None
        self._forget_others(writer, found)

    def _forget_others(self, writer: TransactionalWriter, found: dict[str, str]) -> None:
        """Of a topic that has another id than before, what was written counts no longer. One that is not found may have
        been deleted, or be unknown yet to the broker that was asked: its next id tells.
        """
        writer.forget({topic for topic, each in found.items() if each != self._topic_ids.get(topic, each)})
        self._topic_ids |= found

    def _commit_position(self, writer: TransactionalWriter, position: FilePosition) -> None:
        writer.begin()
        self._commit_with(writer, position)

    def _commit_with(self, writer: TransactionalWriter, position: FilePosition) -> None:
        writer.commit({**msgspec.to_builtins(position), "topics": self._topic_ids})

    def _encode(self, line: Line) -> tuple[bytes | None, tuple[str, str]]:
        """The record of a line, or the code and reason why there is none."""
        place = f"{self.path} at byte {line.position}"
        if not line.whole:
            return None, ("line_too_long", f"{place}: a line of more than {self.config.max_line_bytes} bytes")
        try:
            text = line.data.decode(self.config.encoding)
        except UnicodeDecodeError as error:
            reason = f"byte {error.start} of the line is not {self.config.encoding}: {error.reason}"
            return None, ("not_text", f"{place}: {reason}")
        try:
            return avro.encode(self._schema.id, self._schema.schema, {"line": text}), ("", "")
        except avro.UnfitRow as error:  # half of a surrogate pair, which utf-7 and escapes can write
            return None, ("not_text", f"{place}: {error}")

    def _refused(self, writer: TransactionalWriter, line: Line, code: str, reason: str) -> bytes:
        topic, now_ms = self.config.topic, self._clock.now_ms()
        if self._quarantine_id is None:
            self._quarantine_id = quarantine.ensure_quarantine(self._connection, self._registry, topic)
            self._forget_others(writer, topic_ids(self._connection, [quarantine_topic(topic)]))
        refused = Quarantined(topic, STAGE, code, reason, line.data, now_ms, schema_id=self._schema.id)
        return quarantine.encode(self._quarantine_id, refused)

    def _state_end(self, writer: TransactionalWriter, position: FilePosition) -> FilePosition:
        """All lines are committed: state that nothing follows, and remember that it was stated, in one transaction."""
        ended = msgspec.structs.replace(position, ended=True)
        statement = statement_about(self._connection, self.config.topic, self._clock.now_ms(), end=True)
        writer.begin()
        writer.send(HEARTBEATS, 0, statement.key, encode_heartbeat(statement))
        self._commit_with(writer, ended)
        log.info("file_ended", source=self.name, path=str(self.path), position=position.position)
        return ended

    # -- what the topic is

    def _partitions(self) -> int:
        try:
            return describe(self._connection, self.config.topic).partitions
        except UnknownTopic:
            raise self._unknown_topic() from None

    def _unknown_topic(self) -> UnknownTopic:
        topic = self.config.topic
        table = f'topics."{topic}"' if "." in topic else f"topics.{topic}"
        hint = f"add [{table}] to mainstem.toml and start `mainstem up` again, or: mainstem topic create {topic}"
        return UnknownTopic(f"source {self.name}: topic {topic}: no such topic", hint=hint)

    def _topic_schema(self) -> RegisteredSchema:
        """The topic's latest schema; it must take `{"line": text}`. Without one, ours is registered."""
        subject = f"{self.config.topic}-value"
        entry = topic_entries(read_catalog(self._connection)).get(self.config.topic, TopicEntry(subject=subject))
        if (entry.producer or "").startswith("job:"):  # each would state the end of what the other writes
            raise UnfitTopic(
                f"source {self.name}: topic {self.config.topic}: expected one that nobody else writes, found that of "
                f"{entry.producer}",
                hint="give the file a topic of its own",
            )
        try:
            schema = self._registry.latest(subject)
        except NotFound:
            self._registry.register(subject, LINE_SCHEMA)
            schema = self._registry.latest(subject)
        try:
            avro.encode(schema.id, schema.schema, {"line": ""})
        except avro.UnfitRow as error:
            raise UnfitTopic(
                f'source {self.name}: topic {self.config.topic}: its schema does not take {{"line": text}}: {error}',
                hint="give the file a topic of its own, or other fields of its schema a default",
            ) from None
        if entry.producer is None:  # otherwise the collector would take events for it too
            key, producer = f"topic:{self.config.topic}", {"producer": f"source:{self.name}"}
            change_catalog(self._connection, lambda now: {key: {"subject": subject} | now.get(key, {}) | producer})
        return schema

    def _decode(self, position: object) -> FilePosition | None:
        if not position:
            return None
        try:
            return msgspec.convert(position, prepared(FilePosition))
        except msgspec.ValidationError as error:
            raise CorruptData(f"source {self.name}: position {position!r}: {error}", hint=NOT_OURS) from error
