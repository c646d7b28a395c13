import errno
import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mainstem.log import SystemDisk
from mainstem.log import window as module
from mainstem.log.span_memory import SpanMemory
from mainstem.log.window import Window
from tests.support.properties import examples

BLOCK = 3 * 4096
HEAD = 2 * 4096


def window_of(blocks, *, ahead):
    return Window(blocks, SpanMemory(HEAD, 3 * BLOCK), ahead=ahead)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", BLOCK)


@given(
    size=st.integers(1, 12 * BLOCK),
    reads=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 4 * BLOCK), st.booleans()), max_size=20),
    until=st.integers(0, 12 * BLOCK),
    ahead=st.booleans(),
)
@settings(max_examples=examples(60))
def test_a_window_shows_what_is_in_the_file(size, reads, until, ahead):
    """In order, with steps back and forth, over the end of what may be read, and where the file ends before that."""
    content = os.urandom(size)
    with TemporaryDirectory() as directory, ThreadPoolExecutor(1) as blocks:
        path = Path(directory) / "f"
        path.write_bytes(content)
        file, window, position = SystemDisk().open(path), window_of(blocks, ahead=ahead), 0
        for back, count, jumps in reads:
            position = back * 7 if jumps else max(0, position - back)
            found = bytes(window.read(file, count, position, until))
            assert found == content[:until][position : position + count]
            position += len(found)


def test_what_comes_next_is_read_while_somebody_looks_at_the_last(tmp_path):
    class Seen:
        def __init__(self):
            self.starts = []

        def read_around_cache(self, buffer, position, block):
            self.starts += range(position, position + len(buffer), block)
            return len(buffer)

    file = Seen()
    with ThreadPoolExecutor(1) as blocks:
        window = window_of(blocks, ahead=True)
        window.read(file, BLOCK, 0, 100 * BLOCK)
        blocks.submit(lambda: None).result()
        assert file.starts == [number * BLOCK for number in range(9)], "the span, and two more"
        window.read(file, 3 * BLOCK, BLOCK, 100 * BLOCK)
        blocks.submit(lambda: None).result()
        assert file.starts == [number * BLOCK for number in range(12)], "each once"


def test_what_was_found_stays_as_it_is_while_somebody_has_it(tmp_path):
    content = os.urandom(40 * BLOCK)
    (tmp_path / "f").write_bytes(content)
    file = SystemDisk().open(tmp_path / "f")
    with ThreadPoolExecutor(1) as blocks:
        window, position, found = window_of(blocks, ahead=True), 0, []
        while position < len(content):
            part = window.read(file, BLOCK + 999, position, len(content))
            found.append((position, part))
            position += len(part)
        for at, part in found:
            assert part == content[at : at + len(part)]


def test_what_was_read_ahead_of_one_file_is_not_taken_for_anothers(tmp_path):
    files = []
    for letter in (b"a", b"b"):
        (tmp_path / letter.decode()).write_bytes(letter * 8 * BLOCK)
        files.append(SystemDisk().open(tmp_path / letter.decode()))
    with ThreadPoolExecutor(1) as blocks:
        window = window_of(blocks, ahead=True)
        assert bytes(window.read(files[0], BLOCK, 0, 8 * BLOCK)) == b"a" * BLOCK
        assert bytes(window.read(files[1], BLOCK, BLOCK, 8 * BLOCK)) == b"b" * BLOCK


def test_what_may_still_change_is_looked_at_again(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"a" * 5_000)
    file = SystemDisk().open(path)
    with ThreadPoolExecutor(1) as blocks:
        window = window_of(blocks, ahead=True)
        assert bytes(window.read(file, 9_000, 0, 4_500)) == b"a" * 4_500
        file.write([b"b" * 500], 4_500)
        assert bytes(window.read(file, 500, 4_500, 5_000)) == b"b" * 500


def test_a_read_that_fails_leaves_nothing_behind(tmp_path):
    """What wants descriptors is asked for again and again, and nobody but the collector finds what is in a circle."""

    class Failing:
        def read_around_cache(self, buffer, position, block):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    gc.disable()
    try:
        with ThreadPoolExecutor(1) as blocks:
            spans = SpanMemory(HEAD, 3 * BLOCK)
            window, file = Window(blocks, spans, ahead=True), Failing()
            gone = weakref.ref(file)
            for _ in range(3):
                with pytest.raises(OSError, match="Too many open files") as told:
                    window.read(file, BLOCK, 0, 100 * BLOCK)
                assert told.value.errno == errno.EMFILE
                del told
            window.forget()
            blocks.submit(lambda: None).result()
            del file
        assert (spans.is_whole, gone()) == (True, None)
    finally:
        gc.enable()


def test_a_file_that_is_forgotten_is_closed(tmp_path):
    path = tmp_path / "to-be-deleted"
    path.write_bytes(b"a" * 5_000)
    with ThreadPoolExecutor(1) as blocks:
        window = window_of(blocks, ahead=False)
        window.read(SystemDisk().open(path), 10, 0, 5_000)
        path.unlink()

        def is_open():
            return any(
                path.name in str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()
            )

        assert is_open()
        window.forget()
        assert not is_open()
