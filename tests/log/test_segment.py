import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstem.log import SystemDisk
from mainstem.log.limits import LET_GO
from mainstem.log.segment import INDEX, LOG, SUFFIXES, TIME_INDEX, BadBatch, OpenFiles, Segment
from mainstem.records import decode_header
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch, deleted_files

sizes = st.lists(st.integers(0, 900), min_size=1, max_size=12)


def files(tmp_path, most=16) -> OpenFiles:
    return OpenFiles(SimulatedDisk(tmp_path), most)


def filled(opened: OpenFiles, directory, given_sizes, *, interval=300, base_offset=0) -> Segment:
    segment = Segment(directory, base_offset, opened)
    offset = base_offset
    for number, size in enumerate(given_sizes):
        data = batch(b"v" * size, b"w", base_offset=offset, timestamp=1_000 + number)
        position = segment.append(decode_header(data), interval)
        segment.file_to_write(position).write([data], position)
        offset += 2
    return segment


@given(sizes, st.data())
def test_a_scan_gives_whole_batches_up_to_any_cut(given_sizes, data):
    opened = OpenFiles(SimulatedDisk(root := Path("/disk")), 4)
    segment = filled(opened, root, given_sizes)
    ends = [0]
    for _, header, _ in segment.scan():
        ends.append(ends[-1] + header.size)
    assert ends[-1] == segment.size
    cut = data.draw(st.integers(0, segment.size))
    found, stopped_at = [], cut
    try:
        for position, _, content in segment.scan(0, cut):
            found.append(position + len(content))
    except BadBatch as error:
        stopped_at = error.position
    assert stopped_at == max(end for end in ends if end <= cut)
    assert found == [end for end in ends[1:] if end <= cut]


@given(sizes, st.data())
def test_a_lookup_leads_to_the_batch(given_sizes, data):
    opened = OpenFiles(SimulatedDisk(root := Path("/disk")), 4)
    segment = filled(opened, root, given_sizes, base_offset=50)
    offset = data.draw(st.integers(50, segment.next_offset - 1))
    position = segment.position_of(offset)
    headers = [header for _, header, _ in segment.scan(position)]
    assert headers[0].base_offset <= offset
    assert any(h.base_offset <= offset <= h.last_offset for h in headers)


def test_a_cut_forgets_the_end(tmp_path):
    segment = filled(files(tmp_path), tmp_path, [500, 500, 500, 500])
    shorter = filled(files(tmp_path), tmp_path, [500, 500])
    segment.cut(shorter.size, shorter.next_offset, shorter.latest)
    assert (segment.size, segment.next_offset) == (shorter.size, shorter.next_offset)
    assert segment.latest == shorter.latest
    assert segment.offset_index.data == shorter.offset_index.data
    segment.cut(0, 0, shorter.latest)
    assert segment.latest == (-1, 0)


def test_indexes_come_back_from_their_files_or_from_the_batches(tmp_path):
    opened = files(tmp_path)
    segment = filled(opened, tmp_path, [400] * 8)
    segment.seal()
    state = segment.state()
    for write in segment.index_writes(state):
        write.write(opened)
    again = Segment(tmp_path, 0, opened, state)
    assert not again.indexed
    entries = again.read_indexes(again.unloaded)
    assert entries == (bytes(segment.offset_index.data), bytes(segment.time_index.data))
    again.fill_indexes(entries, rebuilt=False)
    assert again.position_of(9) == segment.position_of(9)

    opened.disk.file(segment.path_of(INDEX)).data[3] ^= 1
    doubtful = Segment(tmp_path, 0, opened, state)
    assert doubtful.read_indexes(doubtful.unloaded) is None
    opened.disk.unlink(segment.path_of(INDEX))
    assert doubtful.read_indexes(doubtful.unloaded) is None
    rebuilt = doubtful.rebuild_indexes(300)
    assert rebuilt == entries
    doubtful.fill_indexes(rebuilt, rebuilt=True)
    assert doubtful.unsaved
    assert doubtful.indexed


def test_index_files_without_entries_are_removed_where_compaction_wrote_the_segment(tmp_path):
    """It takes the name of another, whose index files are still there; an ordinary one finds none."""
    opened = files(tmp_path)
    segment = filled(opened, tmp_path, [10])
    indexes = [segment.path_of(suffix) for suffix in SUFFIXES if suffix != LOG]
    for path in indexes:
        opened.disk.write_file(path, b"of another")
    assert segment.index_writes(segment.state()) == []
    segment.offsets_crc = 1
    segment.seal()
    for write in segment.index_writes(segment.state()):
        write.write(opened)
    assert [path.suffix for path in indexes if opened.disk.exists(path)] == [INDEX, TIME_INDEX]
    assert opened.disk.read_file(segment.path_of(INDEX)) == b""
    assert opened.disk.read_file(segment.path_of(TIME_INDEX)) == segment.time_index.data


def test_a_rebuild_does_not_hide_damage(tmp_path):
    segment = filled(files(tmp_path), tmp_path, [400] * 3)
    state = segment.state()
    segment.file.node.data[500] ^= 1
    with pytest.raises(BadBatch, match="position 4"):
        Segment(tmp_path, 0, OpenFiles(segment.file.disk, 4), state).rebuild_indexes(300)


def test_only_so_many_files_are_open(tmp_path):
    opened = OpenFiles(SystemDisk(), 2)
    segments = [Segment(tmp_path, n, opened) for n in range(5)]
    first = segments[0].file_to_write(0)
    for segment in segments[1:]:
        segment.file_to_write(0).write([b"x"], 0)
    assert sum(segment.opened is not None for segment in segments) == 2
    first.write([b"still open for whoever has it"], 0)
    assert segments[0].file.read(5, 0) == b"still"


def test_a_file_that_is_let_go_is_closed_once_nobody_reads_it(tmp_path):
    opened = OpenFiles(SystemDisk(), 2)
    segment, other = Segment(tmp_path, 0, opened), Segment(tmp_path, 1, opened)
    other.file_to_write(0)
    file = segment.file_to_write(0)
    file.write([b"read by somebody"], 0)
    opened.retire([segment])
    segment.unlink()
    assert file.read(4, 0) == b"read"
    assert deleted_files(tmp_path) == 1
    del file
    assert deleted_files(tmp_path) == 0
    opened.forget(segment)  # nothing is open
    assert other.opened is not None
    with pytest.raises(FileNotFoundError):
        _ = segment.file


def test_where_many_files_that_were_let_go_are_still_open_no_more_may_be_kept(tmp_path):
    opened = OpenFiles(SystemDisk(), 2)
    segments = [Segment(tmp_path, n, opened) for n in range(LET_GO // 2 + 2)]
    for segment in segments:
        segment.file_to_write(0)
    assert opened.may_be_kept, "nobody has them"
    kept = [segment.file for segment in segments]
    assert not opened.may_be_kept
    del kept
    assert opened.may_be_kept


def test_a_retired_segment_is_not_opened_again(tmp_path):
    opened = OpenFiles(SystemDisk(), 2)
    segment = Segment(tmp_path, 0, opened)
    opened.retire([segment])
    with pytest.raises(FileNotFoundError, match="deleted or replaced"):
        _ = segment.file


@pytest.mark.parametrize(
    "by_name",
    [
        lambda opened, segment: opened.open(segment, create=True),
        lambda opened, segment: opened.open_index(segment, INDEX),
        lambda opened, segment: opened.unlink_index(segment, INDEX),
    ],
    ids=["open", "open_index", "unlink_index"],
)
def test_who_retires_a_segment_waits_for_whoever_is_about_to_use_its_name(tmp_path, by_name):
    begun, go_on = threading.Event(), threading.Event()

    class Slow(SystemDisk):
        def open(self, path, *, create=False):
            self.wait()
            return super().open(path, create=create)

        def unlink(self, path):
            self.wait()
            super().unlink(path)

        def wait(self):
            begun.set()
            assert go_on.wait(10)

    opened = OpenFiles(Slow(), 2)
    segment = Segment(tmp_path, 0, opened)
    with ThreadPoolExecutor(2) as threads:
        using = threads.submit(by_name, opened, segment)
        assert begun.wait(10)
        retiring = threads.submit(opened.retire, [segment])
        assert not wait([retiring], timeout=0.1).done
        assert not segment.retired
        go_on.set()
        using.result(10)
        retiring.result(10)
    opened.forget(segment)
    with pytest.raises(FileNotFoundError, match="deleted or replaced"):
        by_name(opened, segment)


def test_kafkas_file_names(tmp_path):
    segment = Segment(tmp_path, 4_711, OpenFiles(SystemDisk(), 2))
    assert segment.path.name == "00000000000000004711.log"
    assert segment.path_of(".timeindex").name == "00000000000000004711.timeindex"


def test_where_the_new_name_is_refused_nothing_is_retired(tmp_path):
    opened = OpenFiles(SystemDisk(), 2)
    segment = Segment(tmp_path, 0, opened)
    with pytest.raises(FileNotFoundError):
        opened.retire([segment], renamed=(tmp_path / "missing", segment.path))
    assert not segment.retired
