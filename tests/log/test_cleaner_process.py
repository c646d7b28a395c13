"""What the process that compacts is told and answers; what becomes of it is in test_cleaner.py."""

import io
import signal
import subprocess
import sys

import pytest

from mainstem.log import SystemDisk
from mainstem.log.checkpoint import SegmentState
from mainstem.log.cleaner_process import Done, Failed, Task, answer_to, decode_answer, encode, read_frame, write_frame
from mainstem.log.index import IndexState
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records import decode_header
from tests.log.support import batch
from tests.support.repository import ROOT


def task(path, *, dirty_offset: int = 0) -> Task:
    """Of one segment of two batches with one key."""
    data = batch(b"1") + batch(b"2", base_offset=1)
    (path / f"{0:020d}.log").write_bytes(data)
    state = SegmentState(0, len(data), 2, 1, 1, 1, 0, IndexState(), IndexState(), (-1, -1), [])
    return Task(str(path), [state], dirty_offset, 2, [], frozenset(), 0, 1, 1 << 20, 4096, 100)


def test_a_plan_is_told_whole(tmp_path):
    told = task(tmp_path)
    assert Task.of(told.plan(OpenFiles(SystemDisk(), 16))) == told


def test_it_answers_with_the_file_and_its_look_ups(tmp_path):
    answer = decode_answer(encode(answer_to(task(tmp_path))))
    assert isinstance(answer, Done)
    (written,) = answer.files
    assert (written.base_offsets, written.state.next_offset, answer.end_offset) == ([0], 2, 2)
    data = (tmp_path / f"{0:020d}.log.cleaned").read_bytes()
    assert (decode_header(data).base_offset, len(data)) == (1, written.state.size)
    segment = Segment(tmp_path, 0, OpenFiles(SystemDisk(), 16))
    segment.take_over(written.state, written.offset_entries, written.time_entries)
    assert segment.state() == written.state
    assert (segment.unsaved, segment.trust.floor, segment.checkpointed_size) == (True, len(data), -1)


def test_what_goes_wrong_has_its_kind(tmp_path):
    path = tmp_path / f"{0:020d}.log"
    told = task(tmp_path)
    path.unlink()
    missing = answer_to(told)
    assert isinstance(missing, Failed)
    assert (missing.kind, missing.number, missing.path) == ("disk", 2, str(path))
    task(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    damaged = answer_to(told)
    assert isinstance(damaged, Failed)
    assert (damaged.kind, damaged.number) == ("damage", told.segments[0].size // 2)
    assert answer_to(Task(str(tmp_path), [], 0, 0, [], frozenset(), 0, 0, 1, 1, 1)) == Failed(
        "bug", "IndexError('list index out of range')"
    )
    assert not list(tmp_path.glob("*.cleaned"))


def test_frames():
    pipe = io.BytesIO()
    write_frame(pipe, b"one")
    write_frame(pipe, b"two")
    pipe.seek(0)
    assert [read_frame(pipe), read_frame(pipe)] == [b"one", b"two"]
    with pytest.raises(EOFError):
        read_frame(pipe)


def test_what_is_printed_is_no_answer_and_it_ends_with_its_input():
    code = "import mainstem.log.cleaner_process as p; p.answer_to = lambda task: print('said') or p.Done([], 1, 2); p.main()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        write_frame(process.stdin, encode(Task("", [], 0, 0, [], frozenset(), 0, 0, 1, 1, 1)))
        assert decode_answer(read_frame(process.stdout)) == Done([], 1, 2)
        process.send_signal(signal.SIGINT)  # Ctrl-C is told to all: the log decides
        process.send_signal(signal.SIGTERM)
        write_frame(process.stdin, encode(Task("", [], 0, 0, [], frozenset(), 0, 0, 1, 1, 1)))
        assert decode_answer(read_frame(process.stdout)) == Done([], 1, 2)
        process.stdin.close()
        assert process.wait(10) == 0
        assert process.stderr.read() == b"said\n" * 2
