"""What the journal says of a partition, and what becomes of its files; whole starts are in test_recovery.py."""

import weakref
from uuid import UUID

import msgspec
import pytest
from crc32c import crc32c

from mainstem.log.checkpoint import SegmentState
from mainstem.log.compaction import CLEANED, Replacement
from mainstem.log.errors import CorruptFile
from mainstem.log.index import IndexState
from mainstem.log.journal import CREATE, DATA, DELETE, LOG_START, PLACED, REPLACE, Entry, Frame
from mainstem.log.redo import Changes, changes_by_partition, redo_batches, redo_replacements
from mainstem.log.segment import LOG, OpenFiles, file_name
from mainstem.records.batch import HEADER, PREFIX
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch

ONE, OTHER = UUID(int=1), UUID(int=2)


def entry(kind, *, topic_id=ONE, number=0, position=0, payload=b""):
    return Entry(kind, topic_id, 0, number, position, (payload,))


def rounds(*entries):
    """One round for each."""
    return [Frame(1, sequence, [each], 4096) for sequence, each in enumerate(entries, 1)]


def at(offset, data):
    return offset.to_bytes(8, "big") + data[8:]


@pytest.fixture
def disk(tmp_path):
    return SimulatedDisk(tmp_path)


def write(disk, path, data):
    disk.write_file(path, data)
    disk.file(path).sync()


def names(disk, path):
    return [each.name for each in disk.list(path)]


def test_what_comes_before_a_deletion_is_moot():
    changes = Changes(
        rounds(
            entry(CREATE, payload=b"orders"),
            entry(DATA, payload=batch(b"v")),
            entry(LOG_START, number=1),
            entry(DELETE),
        )
    )
    assert (changes.deleted, changes.topic, changes.topics_deleted) == (True, None, {"orders"})
    assert (changes.rounds, changes.batches, changes.log_start, changes.promised_end) == ([], {}, 0, 0)


def test_batches_that_end_before_an_offset():
    three, four = at(3, batch(b"c")), at(4, batch(b"d", b"e"))
    changes = Changes(
        rounds(
            entry(DATA, payload=at(0, batch(b"a", b"b")) + at(2, batch(b"x"))),
            entry(DATA, number=3, payload=three),
            entry(DATA, number=3, position=len(three), payload=four),
        )
    )
    assert [header.base_offset for header, _ in changes.batches_before(5)] == [0, 2, 3]
    assert [bytes(data) for _, data in changes.batches_before(6)][2:] == [three, four]


def test_each_partition_has_its_own_part_of_a_round():
    data = at(5, batch(b"a", b"b"))
    frame = Frame(3, 7, [entry(DATA, number=5, payload=data), entry(LOG_START, topic_id=OTHER, number=9)], 4096)
    changes = changes_by_partition([frame])
    assert (changes[ONE, 0].promised_end, changes[ONE, 0].log_start) == (7, 0)
    assert (changes[OTHER, 0].promised_end, changes[OTHER, 0].log_start) == (0, 9)
    assert changes[OTHER, 0].rounds == [Frame(3, 7, [frame.entries[1]], 4096)]


def test_an_entry_of_a_later_program_is_refused():
    with pytest.raises(CorruptFile, match="an entry of kind 9"):
        Changes(rounds(entry(9)))


@pytest.mark.parametrize("there", ["nothing", "the first", "both"])
def test_batches_are_brought_to_their_places(disk, tmp_path, there):
    first, second = at(0, batch(b"a")), at(1, batch(b"b"))
    path = tmp_path / file_name(0, LOG)
    content = {"nothing": b"", "the first": first, "both": first + second}[there]
    if content:
        disk.write_file(path, content)
    changes = Changes(rounds(entry(DATA, payload=first), entry(DATA, position=len(first), payload=second)))
    redo_batches(changes, tmp_path, disk, 0, sync=True)
    assert disk.read_file(path) == disk.file(path).durable == first + second


def test_files_that_are_brought_there_are_open_one_at_a_time(disk, tmp_path, monkeypatch):
    """All of a partition's were, and a start had no file descriptor left where its segments are many."""
    opened = weakref.WeakSet()

    def open_file(path, *, create=False, before=disk.open):
        file = before(path, create=create)
        opened.add(file)
        assert len(opened) <= 2
        return file

    monkeypatch.setattr(disk, "open", open_file)
    changes = Changes(rounds(*(entry(DATA, number=n, payload=at(n, batch(b"v"))) for n in range(10))))
    redo_batches(changes, tmp_path, disk, 0)
    assert names(disk, tmp_path) == [file_name(n, LOG) for n in range(10)]


@pytest.mark.parametrize(("log_start", "made"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_file_that_is_missing_was_deleted_if_all_its_records_were(disk, tmp_path, log_start, made):
    changes = Changes(rounds(entry(DATA, payload=at(0, batch(b"a", b"b")))))
    redo_batches(changes, tmp_path, disk, log_start)
    assert disk.exists(tmp_path / file_name(0, LOG)) is made


def test_batches_of_segments_that_compaction_has_replaced_are_not_written(disk, tmp_path):
    """Without a checkpoint the journal may go back to before the compaction."""
    replacement, cleaned = replacing([0, 1], at(1, batch(b"b")))
    write(disk, tmp_path / file_name(0, LOG), cleaned)
    data = [entry(DATA, number=n, payload=at(n, batch(b"a"))) for n in (0, 1)]
    changes = Changes(rounds(*data, replacement))
    redo_batches(changes, tmp_path, disk, 0)
    assert names(disk, tmp_path) == [file_name(0, LOG)]
    assert disk.read_file(tmp_path / file_name(0, LOG)) == cleaned
    assert changes.promised_end == 0


def replacing(base_offsets, cleaned):
    crc = crc32c(cleaned[: PREFIX.size])
    empty = IndexState(0, 0)
    state = SegmentState(base_offsets[0], len(cleaned), 2, 0, 0, 0, 0, empty, empty, (0, 0), [], crc)
    payload = msgspec.msgpack.encode(Replacement(state, base_offsets))
    return entry(REPLACE, payload=payload), cleaned


@pytest.mark.parametrize("renamed", [False, True])
def test_a_replacement_is_completed_whether_the_file_was_renamed_or_not(disk, tmp_path, renamed):
    replacement, cleaned = replacing([0, 1], at(1, batch(b"b")))
    path = tmp_path / file_name(0, LOG)
    for base_offset in (0, 1, 2):
        write(disk, tmp_path / file_name(base_offset, LOG), at(base_offset, batch(b"old")))
    write(disk, path if renamed else path.with_name(path.name + CLEANED), cleaned)
    redo_replacements(Changes(rounds(replacement)), tmp_path, OpenFiles(disk, 10))
    assert names(disk, tmp_path) == [file_name(0, LOG), file_name(2, LOG)]
    assert disk.read_file(path) == cleaned


@pytest.mark.parametrize("content", ["half", "another of that length"])
def test_a_file_that_is_not_what_the_journal_speaks_of_replaces_nothing(disk, tmp_path, content):
    """A later compaction had begun it; nothing goes before what replaces it is there."""
    replacement, cleaned = replacing([0, 1], at(1, batch(b"b")))
    path, other = tmp_path / file_name(0, LOG), tmp_path / file_name(1, LOG)
    for base_offset in (0, 1):
        write(disk, tmp_path / file_name(base_offset, LOG), at(base_offset, batch(b"old")))
    found = cleaned[: len(cleaned) // 2] if content == "half" else at(0, batch(b"c"))
    write(disk, path.with_name(path.name + CLEANED), found)
    redo_replacements(Changes(rounds(replacement)), tmp_path, OpenFiles(disk, 10))
    assert disk.read_file(path) == at(0, batch(b"old"))
    assert disk.exists(other)


def test_of_placed_batches_the_journal_has_where_they_end_and_who_sent_them(disk, tmp_path):
    """Their bytes are in the file, which redo leaves as it is; they are no gap in what the journal has of it."""
    first, second = at(0, batch(b"a", b"b", producer_id=5)), at(2, batch(b"c", producer_id=6))
    third = at(3, batch(b"d"))
    headers = first[: HEADER.size] + second[: HEADER.size]
    path, end = tmp_path / file_name(0, LOG), len(first + second)
    changes = Changes(rounds(entry(PLACED, payload=headers), entry(DATA, position=end, payload=third)))
    assert changes.has_placed
    assert changes.promised_end == 4
    found = [(header.producer_id, header.next_offset, bytes(data)) for header, data in changes.batches_before(4)]
    assert found == [(5, 2, b""), (6, 3, b""), (-1, 4, third)]
    assert list(changes.gaps(0, 0, end + len(third) + 9)) == [(end + len(third), end + len(third) + 9)]
    write(disk, path, first + second)
    redo_batches(changes, tmp_path, disk, 0, sync=True)
    assert disk.file(path).durable == first + second + third
