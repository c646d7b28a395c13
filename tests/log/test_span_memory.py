import errno
import mmap
import os

import pytest

from mainstem.log import span_memory as module
from mainstem.log.span_memory import SpanMemory

HEAD, SIZE = 4096, 3 * 4096


@pytest.fixture
def made(monkeypatch):
    """The sizes of the memory that was made."""
    sizes, make = [], mmap.mmap

    def counted(descriptor, size):
        sizes.append(size)
        return make(descriptor, size)

    monkeypatch.setattr(module.mmap, "mmap", counted)
    return sizes


def test_memory_comes_back_when_the_last_view_of_it_is_gone(made):
    spans = SpanMemory(HEAD, SIZE)
    whole = spans.take()
    assert (len(whole), whole.format, whole.readonly) == (HEAD + SIZE, "B", False)
    part = whole[10:20][2:]
    part[:] = b"12345678"
    del whole
    other = spans.take()
    other[:] = b"x" * len(other)
    assert bytes(part) == b"12345678", "it is not anybody else's while there is a view"
    del part
    again = spans.take()
    assert bytes(again[12:20]) == b"12345678", "the same memory"
    assert made == [HEAD + SIZE] * 2


def test_beyond_a_number_of_pieces_memory_is_its_takers_own(made, monkeypatch):
    monkeypatch.setattr(module, "_MOST", 3)
    monkeypatch.setattr(module, "_FOR_READS", 2)
    spans = SpanMemory(HEAD, SIZE)
    taken = [spans.take()]
    assert not spans.is_scarce
    taken.append(spans.take())
    assert spans.is_scarce
    taken += [spans.take() for _ in range(3)]
    assert len(made) == 5
    for number, each in enumerate(taken):
        each[:] = bytes([number]) * len(each)
    assert [each[0] for each in taken] == [0, 1, 2, 3, 4]
    del each
    taken.clear()
    assert not spans.is_scarce
    taken = [spans.take() for _ in range(3)]
    assert len(made) == 5, "three came back"


def test_a_piece_that_cannot_be_made_now_can_be_later(monkeypatch):
    def refused(descriptor, size):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(module, "_MOST", 2)
    spans = SpanMemory(HEAD, SIZE)
    with monkeypatch.context() as short_of_memory:
        short_of_memory.setattr(module.mmap, "mmap", refused)
        for _ in range(5):
            with pytest.raises(OSError, match="Cannot allocate memory"):
                spans.take()
    assert spans.is_whole
    taken = [spans.take(), spans.take()]
    assert not spans.is_whole
    taken.clear()
    assert spans.is_whole


def test_what_nobody_has_can_be_let_go_of(made):
    spans = SpanMemory(HEAD, SIZE)
    kept, gone = spans.take(), spans.take()
    kept[:5] = b"12345"
    del gone
    spans.trim()
    other = spans.take()
    assert made == [HEAD + SIZE] * 3
    other[:] = b"x" * len(other)
    assert bytes(kept[:5]) == b"12345"
    del kept, other
    spans.trim()
    assert not spans.is_scarce
