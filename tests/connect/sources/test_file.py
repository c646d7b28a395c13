"""A file source against a real log: every line once, whatever happens to the file or to the source."""

import errno
import gzip
import os
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from mainstem.audit.report import audit
from mainstem.client.catalog import TopicEntry, write_catalog
from mainstem.client.errors import BrokerUnavailable, UnknownTopic
from mainstem.client.heartbeats import decode
from mainstem.client.internal import HEARTBEATS
from mainstem.client.topics import delete, describe_config, ensure_topic, topic_ids
from mainstem.client.writer import TransactionalWriter, read_source
from mainstem.connect.sources.file import (
    LINE_SCHEMA,
    BytesGone,
    CopyOfRead,
    FileSource,
    GrewAfterItsEnd,
    UnfitPath,
    UnfitTopic,
    Unreadable,
)
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.core import CorruptData, SystemClock
from mainstem.registry import avro
from mainstem.registry.errors import NotFound
from mainstem.registry.quarantine import quarantine_topic
from mainstem.registry.schema import canonical
from tests.support.records import committed


class World:
    """A directory, a topic, and a source that can be started and stopped."""

    def __init__(self, connection, registry, directory):
        self.connection, self.registry = connection, registry
        self.topic = f"lines-{uuid.uuid4().hex[:8]}"
        self.path = directory / "access.log"
        self.config = FileSourceConfig(
            str(self.path), self.topic, poll_ms=10, rotation_wait_ms=100, batch_bytes=4096, max_line_bytes=1000
        )
        ensure_topic(connection, self.topic, 1)

    def source(self):
        return FileSource(f"file-{self.topic}", self.config, self.connection, self.registry)

    @contextmanager
    def running(self, source=None):
        source = source or self.source()
        stop, errors = threading.Event(), []

        def work():
            try:
                source.run(stop)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield errors
        finally:
            stop.set()
            thread.join(30)
        assert not thread.is_alive()

    def append(self, data):
        with self.path.open("ab") as file:
            file.write(data)

    def lines(self):
        return [
            avro.decode(message.value(), self.registry.schema)["line"]
            for message in committed(self.connection, self.topic)
        ]

    def step(self, clock):
        clock.seconds += 1e6
        return self.lines()

    def wait_for(self, expected, seconds=20):
        until = time.monotonic() + seconds
        while (found := self.lines()) != expected:
            assert time.monotonic() < until, (
                f"expected {expected[-3:]} ({len(expected)}), found {found[-3:]} ({len(found)})"
            )
            time.sleep(0.05)

    def position(self):
        return read_source(self.connection, f"file-{self.topic}").position

    def has_read(self, size):
        state = read_source(self.connection, f"file-{self.topic}")
        return state is not None and state.position["position"] == size

    def wait_until(self, condition, seconds=20):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.05)

    def statements(self):
        found = [decode(message.value()) for message in committed(self.connection, HEARTBEATS)]
        return [each for each in found if getattr(each, "topic", None) == self.topic]


@pytest.fixture
def world(log_connection, live_registry, tmp_path):
    return World(log_connection, live_registry, tmp_path)


def numbered(first, last):
    return [f"line {number}" for number in range(first, last)]


def text(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def test_lines_are_followed_restarts_go_on_and_the_end_is_stated_once(world):
    with world.running():
        time.sleep(0.1)  # the file comes later than the source
        world.append(text(numbered(0, 500)) + b"half a ")
        world.wait_for(numbered(0, 500))
        world.append(b"line\n")
        world.wait_for([*numbered(0, 500), "half a line"])
    world.append(b"while it was away\nno end of line")
    world.path.with_name("access.log.end").touch()
    expected = [*numbered(0, 500), "half a line", "while it was away", "no end of line"]
    with world.running():
        world.wait_for(expected)
        world.wait_until(lambda: world.position()["ended"])
    with world.running() as errors:
        world.append(b"too late")
        world.wait_until(lambda: errors)  # it has looked at all of it again
    assert isinstance(errors[0], GrewAfterItsEnd)
    world.wait_for(expected)
    (statement,) = world.statements()
    assert statement.end
    assert statement.topic_id == topic_ids(world.connection, [world.topic])[world.topic]
    assert statement.positions[0] >= len(expected)
    first = committed(world.connection, world.topic)[1]
    assert dict(first.headers()) == {"mainstem.file": str(world.path).encode(), "mainstem.position": b"7"}
    written = read_source(world.connection, f"file-{world.topic}").written[world.topic][0]
    assert written.count == len(expected)


def test_rotation_by_rename_while_it_runs_and_while_it_is_away(world):
    with world.running():
        world.append(text(numbered(0, 10)))
        world.wait_for(numbered(0, 10))
        old = world.path.open("ab")  # as a server does until it is told to reopen
        world.path.rename(world.path.with_name("access.log.1"))
        world.append(text(numbered(12, 20)))
        old.write(text(numbered(10, 11)) + b"line 11")
        old.close()
        world.wait_for(numbered(0, 20))
    world.append(text(numbered(20, 22)))
    world.path.with_name("access.log.1").rename(world.path.with_name("access.log.3"))
    world.path.rename(world.path.with_name("access.log.2"))
    world.append(text(numbered(22, 24)))
    os.utime(world.path.with_name("access.log.2"), (time.time() - 5, time.time() - 5))
    os.utime(world.path, (time.time() - 2, time.time() - 2))
    world.path.rename(world.path.with_name("access.log.1"))
    world.append(text(numbered(24, 26)))
    with world.running():
        world.wait_for(numbered(0, 26))


def test_truncation_starts_over_and_reads_what_the_copy_still_has(world):
    many = numbered(0, 200)
    with world.running():
        world.append(text(many))
        world.wait_for(many)
    world.append(b"just before\n")
    world.path.with_name("access.log.1").write_bytes(world.path.read_bytes())
    os.truncate(world.path, 0)
    world.append(b"new\n")
    with world.running():
        world.wait_for([*many, "just before", "new"])
        os.truncate(world.path, 0)
        world.append(b"x\n")
        world.wait_for([*many, "just before", "new", "x"])


def test_what_is_no_text_or_too_long_is_kept_in_quarantine_and_the_rest_goes_on(world):
    world.append(b"good\n\xff\xfe bad\n" + b"y" * 2500 + b"\ngood again\n")
    with world.running():
        world.wait_for(["good", "good again"])
    kept = [
        avro.decode(m.value(), world.registry.schema)
        for m in committed(world.connection, quarantine_topic(world.topic))
    ]
    assert (kept[0]["error"], kept[0]["stage"]) == ("not_text", "file")
    assert kept[0]["value"] == b"\xff\xfe bad"
    assert kept[0]["reason"].startswith(f"{world.path} at byte 5: byte 0 of the line is not utf-8")
    assert {each["error"] for each in kept[1:]} == {"line_too_long"}
    assert b"".join(each["value"] for each in kept[1:]) == b"y" * 2500


def test_half_a_surrogate_pair_is_kept_in_quarantine(world):
    """It decodes, and no record can hold it: the source stopped there for good."""
    world.config = msgspec.structs.replace(world.config, encoding="utf-7")
    world.append(b"good\n+2AA-\ngood again\n")
    with world.running():
        world.wait_for(["good", "good again"])
    (kept,) = committed(world.connection, quarantine_topic(world.topic))
    kept = avro.decode(kept.value(), world.registry.schema)
    assert (kept["error"], kept["value"]) == ("not_text", b"+2AA-")


def test_a_line_of_megabytes_does_not_stop_it(world):
    """With the settings as they come, a piece of it was larger than the quarantine takes: refused at every try."""
    world.config = FileSourceConfig(str(world.path), world.topic, poll_ms=10)
    long = b"y" * (5 << 19)
    world.append(b"good\n" + long + b"\ngood again\n")
    with world.running() as errors:
        world.wait_until(lambda: errors or world.lines() == ["good", "good again"], seconds=60)
        assert not errors
    kept = [
        avro.decode(m.value(), world.registry.schema)["value"]
        for m in committed(world.connection, quarantine_topic(world.topic))
    ]
    assert b"".join(kept) == long


@pytest.mark.parametrize("restarted", [False, True])
def test_a_quarantine_that_was_deleted_is_made_anew(world, restarted):
    """The books of the deleted one counted on for it; while the source ran, producing made it, as any topic."""
    source, quarantine = world.source(), quarantine_topic(world.topic)

    def refuse(*lines):
        for bad in lines:  # each in a transaction of its own
            world.append(bad + b"\n")
            size = world.path.stat().st_size
            world.wait_until(lambda size=size: world.has_read(size))
        values = [
            avro.decode(m.value(), world.registry.schema)["value"] for m in committed(world.connection, quarantine)
        ]
        assert values == list(lines)
        assert (
            describe_config(world.connection, quarantine)["retention.ms"] == "-1"
        )  # not as the log makes a missing one

    with world.running(source) as errors:
        refuse(b"\xff 1", b"\xff 2")
        if not restarted:
            delete(world.connection, [quarantine])
            refuse(b"\xff 3", b"\xff 4")
        assert not errors
    if restarted:
        delete(world.connection, [quarantine])
        with world.running(source):
            refuse(b"\xff 3", b"\xff 4")
    assert [line for line in audit(world.connection, [quarantine]) if line.expected != line.found] == []
    assert read_source(world.connection, source.name).written[quarantine][0].count == 2


def test_a_topic_that_is_deleted_while_it_runs_is_not_made_by_producing(world):
    """It was, with the log's settings, and what was written to it was left out of its books."""
    with world.running() as errors:
        world.append(b"one\n")
        world.wait_until(lambda: world.has_read(4))
        delete(world.connection, [world.topic])
        world.append(b"two\n")
        world.wait_until(lambda: errors)
    assert isinstance(errors[0], UnknownTopic)
    ensure_topic(world.connection, world.topic, 1)
    with world.running():
        world.wait_for(["two"])
        world.append(b"three\n")
        world.wait_for(["two", "three"])
    assert [line for line in audit(world.connection, [world.topic]) if line.expected != line.found] == []


@pytest.mark.parametrize("restarted", [False, True])
def test_the_books_of_topics_that_are_made_anew_begin_anew(world, restarted):
    """What was written to the old ones counted on: the audit called the new ones wrong for ever."""
    topics = [world.topic, quarantine_topic(world.topic)]

    def append(lines):
        world.append(lines)
        size = world.path.stat().st_size
        world.wait_until(lambda: world.has_read(size))

    with world.running() as errors:
        append(b"one\n\xff\ntwo\n\xff\n")
        if not restarted:
            delete(world.connection, topics)
            for topic in topics:
                ensure_topic(world.connection, topic, 1)
            append(b"three\n\xff\n")
        assert not errors
    if restarted:
        delete(world.connection, topics)
        for topic in topics:
            ensure_topic(world.connection, topic, 1)
        with world.running():
            append(b"three\n\xff\n")
    assert [line for line in audit(world.connection, topics) if line.expected != line.found] == []
    written = read_source(world.connection, f"file-{world.topic}").written
    assert {topic: written[topic][0].count for topic in topics} == dict.fromkeys(topics, 1)


def test_growing_after_the_end_is_refused(world):
    world.append(b"one\n")
    world.path.with_name("access.log.end").touch()
    with world.running() as errors:
        world.wait_until(lambda: world.lines() and world.position()["ended"])
        world.append(b"two\n")
        world.wait_until(lambda: errors)
    assert isinstance(errors[0], GrewAfterItsEnd)
    world.path.with_name("access.log.end").unlink()
    with world.running():
        world.wait_for(["one", "two"])


@pytest.mark.parametrize("damage", [{"position": -5}, {"head_bytes": 10**13}, {"head_bytes": -1}, {"inode": "x"}])
def test_a_position_that_cannot_be_is_refused(world, damage):
    """It was called the file's fault, and tried for ever; or it asked for more memory than there is."""
    world.append(b"one\n")
    writer = TransactionalWriter(world.connection, f"file-{world.topic}")
    writer.open()
    writer.begin()
    writer.commit({"inode": world.path.stat().st_ino, **damage})
    writer.close()
    with pytest.raises(CorruptData, match=r"position \{.*\}: Expected `int`") as found:
        world.source().run(threading.Event())
    assert found.value.hint


def test_a_topic_of_another_shape_is_refused(world):
    world.registry.register(
        f"{world.topic}-value", '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
    )
    with pytest.raises(UnfitTopic, match="its schema does not take"):
        world.source().run(threading.Event())


def test_a_topic_that_a_job_writes_is_refused(world):
    entry = TopicEntry(subject=f"{world.topic}-value", producer="job:totals")
    write_catalog(world.connection, {f"topic:{world.topic}": entry})
    with pytest.raises(UnfitTopic, match=r"expected one that nobody else writes, found that of job:totals"):
        world.source().run(threading.Event())


def test_a_topic_that_nobody_has_declared_is_named_with_the_table_to_add(world):
    world.topic = f"undeclared-{uuid.uuid4().hex[:8]}"
    world.config = msgspec.structs.replace(world.config, topic=world.topic)
    with pytest.raises(UnknownTopic, match=f"topic {world.topic}: no such topic") as error:
        world.source().run(threading.Event())
    assert error.value.hint.startswith(f"add [topics.{world.topic}] to mainstem.toml")
    with pytest.raises(NotFound):
        world.registry.latest(f"{world.topic}-value")


def test_a_path_that_is_no_file_is_a_persons_to_mend(world):
    world.path.mkdir()
    with pytest.raises(UnfitPath, match=r"access\.log: expected a file: Is a directory"):
        world.source().run(threading.Event())


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_a_pipe_or_device_is_no_file(world, make):
    """A pipe that nobody wrote to held the source for ever: it did not stop either."""
    make(world.path)
    with pytest.raises(UnfitPath, match=r"access\.log: expected a file, found a pipe or device"):
        world.source().run(threading.Event())


def test_a_link_to_another_file_system_is_followed(world, monkeypatch):
    """Inodes of two file systems are the same numbers: the new file was taken for the old one, and never read."""
    with world.running():
        world.append(b"one\n")
        world.wait_for(["one"])
        other, number, stat = world.path.with_name("other"), world.path.stat().st_ino, Path.stat
        other.write_bytes(b"two\n")

        def same_number(path, **arguments):
            found = list(stat(path, **arguments))
            found[1], found[2] = (number, found[2] + 1) if path == world.path else found[1:3]
            return os.stat_result(found)

        monkeypatch.setattr(Path, "stat", same_number)
        other.rename(world.path)
        world.wait_for(["one", "two"])


def rotate(world, rest, new):
    """The file gets `rest`, is renamed, and another one with `new` takes its place."""
    world.append(rest)
    world.path.rename(world.path.with_name("access.log.1"))
    world.append(new)
    return world.path.with_name("access.log.1")


def test_a_rest_that_is_gone_is_refused_until_a_person_says_what_to_do(world):
    with world.running():
        world.append(text(numbered(0, 300)))
        world.wait_for(numbered(0, 300))
    rotated = rotate(world, b"unread\n", b"new\n")
    packed = rotated.with_suffix(".1.gz")
    packed.write_bytes(gzip.compress(rotated.read_bytes()))
    rotated.unlink()
    with pytest.raises(BytesGone) as found:
        world.source().run(threading.Event())
    read_to = len(text(numbered(0, 300)))
    assert str(found.value) == (
        f"source file-{world.topic}: {world.path}: expected the file that was read up to byte {read_to}, found another "
        "one, and beside it none that is its rest"
    )
    assert 'on_gap = "skip"' in found.value.hint
    assert world.lines() == numbered(0, 300)

    rotated.write_bytes(gzip.decompress(packed.read_bytes()))  # unpacked: another inode
    with world.running():
        world.wait_for([*numbered(0, 300), "unread", "new"])

    rotated.unlink()
    rotate(world, b"unread again\n", b"newer\n").unlink()
    world.config = msgspec.structs.replace(world.config, on_gap="skip")
    with world.running():
        world.wait_for([*numbered(0, 300), "unread", "new", "newer"])


def test_a_file_that_has_the_inode_of_one_that_is_gone_is_another_one(world):
    """Two rotations with compression while the source is away, and the file system gives the inode away again: it was
    taken for a truncation, and what was unread was passed over in silence.
    """
    with world.running():
        world.append(text(numbered(0, 10)))
        world.wait_for(numbered(0, 10))
    world.path.write_bytes(b"new\n")
    assert world.path.stat().st_ino == world.position()["inode"]
    with pytest.raises(BytesGone, match="expected the file that was read up to byte 70, found another one"):
        world.source().run(threading.Event())
    world.config = msgspec.structs.replace(world.config, on_gap="skip")
    with world.running():
        world.wait_for([*numbered(0, 10), "new"])


def test_a_file_that_may_have_come_after_the_one_that_was_read_is_not_left_out(world):
    """Only later times counted: with the clock set back between two rotations, or a file touched,
    one was passed over.
    """
    with world.running():
        world.append(text(numbered(0, 10)))
        world.wait_for(numbered(0, 10))
    first = rotate(world, b"rest\n", b"between\n").rename(world.path.with_name("access.log.2"))
    between = rotate(world, b"", b"new\n")
    hour_ago, later = time.time() - 3600, time.time() + 3600
    os.utime(between, (hour_ago, hour_ago))
    os.utime(first, (later, later))
    with pytest.raises(
        BytesGone, match=r"access\.log\.2: .* whether access\.log\.1 came after it cannot be told"
    ) as found:
        world.source().run(threading.Event())
    assert "touch -d" in found.value.hint
    assert world.lines() == numbered(0, 10)
    os.utime(first, (hour_ago - 1, hour_ago - 1))
    with world.running():
        world.wait_for([*numbered(0, 10), "rest", "between", "new"])


def test_a_file_that_was_read_to_its_end_may_go(world):
    """Also before the first line of the one that came after it, and over a restart."""
    with world.running() as errors:
        world.append(text(numbered(0, 10)))
        world.wait_for(numbered(0, 10))
        before = world.position()["inode"]
        rotate(world, b"last\n", b"").unlink()
        world.wait_for([*numbered(0, 10), "last"])
        world.wait_until(lambda: world.position()["inode"] not in (before, None))
        assert not errors
    with world.running():
        world.append(b"new\n")
        world.wait_for([*numbered(0, 10), "last", "new"])


@contextmanager
def looked_at(source):
    """Tells when the source has begun to read a file: what comes after it comes late."""
    begun, read = threading.Event(), source._read

    def tell(*arguments):
        begun.set()
        return read(*arguments)

    source._read = tell
    yield begun


def test_a_renamed_file_is_waited_for_also_after_a_start(world):
    """Started between the rename and the last lines, a source went on to the next file at once, and lost them."""
    with world.running():
        world.append(b"one\n")
        world.wait_for(["one"])
    with world.path.open("ab") as old:  # as a server does until it is told to reopen
        rotate(world, b"", b"new\n")
        world.config = msgspec.structs.replace(world.config, rotation_wait_ms=600_000)
        source = world.source()
        with looked_at(source) as begun, world.running(source):
            assert begun.wait(20)
            old.write(b"late\n")
            old.flush()
            world.wait_for(["one", "late"])
    world.config = msgspec.structs.replace(world.config, rotation_wait_ms=100)
    with world.running():
        world.wait_for(["one", "late", "new"])


@pytest.mark.parametrize("size", [300, 10])
def test_a_file_that_is_replaced_by_one_with_all_of_its_lines_is_gone_on_with(world, size):
    """As rsync and editors do: all lines came twice. Of less than 1024 bytes nothing can be said."""
    lines, new = numbered(0, size), world.path.with_name("new")

    def replace(*more):
        new.write_bytes(world.path.read_bytes() + b"".join(more))
        world.path.with_name("access.log~").unlink(missing_ok=True)
        world.path.with_name("access.log~").hardlink_to(world.path)  # as those do who keep the one before
        new.rename(world.path)

    with world.running() as errors:
        world.append(text(lines) + b"half")
        world.wait_for(lines)
        replace(b" a line\n")
        if size < 100:
            world.wait_for([*lines, "half", *lines, "half a line"])
            return
        world.wait_for([*lines, "half a line"])
        replace()
        replace(b"two\n")
        world.wait_for([*lines, "half a line", "two"])
        assert not errors
    with world.running():
        world.append(b"three\n")
        world.wait_for([*lines, "half a line", "two", "three"])


def test_a_file_that_begins_with_all_of_the_rotated_one_is_another(world):
    """Both have the same banner: the second one's was left out."""
    lines = numbered(0, 300)
    with world.running():
        world.append(text(lines))
        world.wait_for(lines)
        rotate(world, b"", text(lines) + b"new\n")
        world.wait_for([*lines, *lines, "new"])


class HeldClock(SystemClock):
    """Stands still, and tells that it was asked."""

    def __init__(self):
        self.seconds, self.asked = 0.0, threading.Event()

    def monotonic(self):
        self.asked.set()
        return self.seconds


@pytest.mark.parametrize("kept", [False, True])
def test_files_that_come_and_go_while_the_one_before_is_read_are_read(world, kept):
    """Two rotations while it was behind, each with compression: the file between them was passed over in silence."""
    clock = HeldClock()
    source = FileSource(f"file-{world.topic}", world.config, world.connection, world.registry, clock=clock)
    with world.running(source) as errors:
        world.append(b"one\n")
        world.wait_for(["one"])
        for number, new in enumerate((b"two\n", b"three\n", b"four\n")):
            rotated = rotate(world, b"", new)
            for _ in range(2):  # the second time it has surely seen that another file is there
                clock.asked.clear()
                assert clock.asked.wait(20)
            if kept:
                rotated.rename(rotated.with_name(f"access.log-2024050{number}"))
            else:
                rotated.unlink()
        world.wait_until(lambda: errors or world.step(clock) == ["one", "two", "three", "four"])
        assert not errors


@pytest.mark.parametrize(("late", "goes"), [(b"", False), (b"late\n", False), (b"late\n", True)])
def test_and_also_where_the_log_is_away_meanwhile(world, monkeypatch, late, goes):
    def away(_):
        raise BrokerUnavailable("the log is away")

    clock = HeldClock()
    world.config = msgspec.structs.replace(world.config, on_gap="skip" if goes else "refuse")
    source = FileSource(f"file-{world.topic}", world.config, world.connection, world.registry, clock=clock)
    with world.running(source) as errors:
        world.append(b"one\n")
        world.wait_for(["one"])
        kept = rotate(world, b"", b"two\n").rename(world.path.with_name("access.log-20240501"))
        for new in (b"three\n", b""):
            for _ in range(2):
                clock.asked.clear()
                assert clock.asked.wait(20)
            if new:
                rotate(world, b"", new).unlink()
        monkeypatch.setattr(TransactionalWriter, "begin", away)
        with kept.open("ab") as file:
            file.write(late)
        world.wait_until(lambda: errors or (not late and world.step(clock) and False))
    monkeypatch.undo()
    expected = ["one", *late.decode().split(), "two", "three"]
    if goes:
        kept.unlink()
        expected.remove("late")
    with world.running(source) as errors:
        world.wait_until(lambda: errors or world.step(clock) == expected)
        assert not errors


def test_a_file_that_was_read_to_its_end_may_go_while_the_log_is_away(world, monkeypatch):
    """That it was read could not be written, and the next try refused to go on without it."""

    def away(_):
        raise BrokerUnavailable("the log is away")

    source, lines = world.source(), numbered(0, 10)
    with world.running(source) as errors:
        world.append(text(lines))
        world.wait_for(lines)
        monkeypatch.setattr(TransactionalWriter, "begin", away)
        rotated = rotate(world, b"", b"")
        world.wait_until(lambda: errors)
    rotated.unlink()
    with pytest.raises(BrokerUnavailable, match="the log is away"):
        source.run(threading.Event())
    monkeypatch.undo()
    with world.running(source):
        world.wait_until(lambda: world.position()["position"] == 0)
    with world.running():
        world.append(b"new\n")
        world.wait_for([*lines, "new"])


def test_a_forerunner_that_is_renamed_while_it_is_looked_for_is_found(world, monkeypatch):
    with world.running():
        world.append(b"one\n")
        world.wait_for(["one"])
    rotated, open_path = rotate(world, b"two\n", b"three\n"), Path.open

    def late(path, *arguments):
        if path == rotated and path.exists():
            path.rename(path.with_name("access.log.2"))
        return open_path(path, *arguments)

    monkeypatch.setattr(Path, "open", late)
    with world.running() as errors:
        world.wait_until(lambda: errors or world.lines() == ["one", "two", "three"])
        assert not errors


def test_what_lies_beside_the_file_and_is_no_part_of_it_is_not_read(world):
    """A copy of a part was read as the next part: all its lines came twice."""
    with world.running():
        world.append(text(numbered(0, 300)))
        world.wait_for(numbered(0, 300))
    rotated = rotate(world, b"rest\n", b"new\n")
    rotated.with_name("access.log.1.bak").write_bytes(rotated.read_bytes())
    rotated.with_name("access.log.offset").write_bytes(b"4711\n")
    copy = rotated.with_name("access.log-20240501")
    copy.write_bytes(rotated.read_bytes())
    with pytest.raises(CopyOfRead, match=r"access\.log-20240501: expected what was written after access\.log\.1"):
        world.source().run(threading.Event())
    copy.unlink()
    with world.running():
        world.wait_for([*numbered(0, 300), "rest", "new"])


def test_another_name_of_a_file_that_was_read_is_not_read(world):
    """By a hard link, as backups make them, all its lines came twice."""
    with world.running():
        world.append(b"one\n")
        world.wait_for(["one"])
    rotated = rotate(world, b"two\n", b"three\n")
    os.link(rotated, rotated.with_name("access.log.20240501"))
    with world.running():
        world.wait_until(lambda: "three" in world.lines())
    assert world.lines() == ["one", "two", "three"]


def test_a_file_that_has_not_come_yet_is_told_once(world):
    """Nothing told that a `path` was mistyped: the source ran, and read nothing."""
    source, told = world.source(), []
    source.on_idle = lambda what, hint: told.append(what)
    with world.running(source):
        world.wait_until(lambda: told)
        world.append(b"one\n")
        world.wait_for(["one"])
        world.path.rename(world.path.with_name("elsewhere"))
        time.sleep(0.1)
    assert told == [f"{world.path} is not there yet", ""]


def test_a_file_that_is_gone_is_waited_for(world):
    with world.running():
        world.append(b"one\n")
        world.wait_for(["one"])
    away = world.path.rename(world.path.with_name("elsewhere"))
    with world.running() as errors:
        time.sleep(0.2)
        away.rename(world.path)
        world.append(b"two\n")
        world.wait_for(["one", "two"])
        assert not errors


def test_a_forerunner_that_cannot_be_read_is_named(world, monkeypatch):
    with world.running():
        world.append(b"one\n")
        world.wait_for(["one"])
    rotated, open_path = rotate(world, b"two\n", b"three\n"), Path.open

    def denied(path, *arguments):  # its mode would not keep root out
        if path == rotated:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_path(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        with pytest.raises(Unreadable, match=r"^source file-lines-\w+: /.*/access\.log\.1: Permission denied$"):
            world.source().run(threading.Event())
    with world.running():
        world.wait_for(["one", "two", "three"])


def test_our_schema_is_canonical_and_positions_are_plain(world):
    assert canonical(LINE_SCHEMA) == LINE_SCHEMA
    assert msgspec.json.decode(LINE_SCHEMA)["fields"] == [{"name": "line", "type": "string"}]
