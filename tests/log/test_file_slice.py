"""Parts of files, given to sockets."""

import errno
import os
import socket

import pytest

from mainstem.core import ManualClock
from mainstem.log import CorruptSegment, SystemDisk
from mainstem.log.disk import SystemFile
from mainstem.log.file_slice import FileSlice
from mainstem.log.trust import Trust
from mainstem.records import CorruptBatch

CONTENT = bytes(range(256)) * 4096


def part_that_is_checked(file, position, size, check):
    """Of a segment that has been appended to just now."""
    clock, trust = ManualClock(), Trust(0)
    trust.appended(10_000_000, clock.monotonic())
    return FileSlice(file, position, size, trust, clock, check)


def part_of(file, position, size):
    return part_that_is_checked(file, position, size, lambda data: None)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "segment").write_bytes(CONTENT)
    return SystemDisk().open(tmp_path / "segment")


def test_a_socket_takes_what_it_has_room_for_and_the_rest_can_be_read(file):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        part = part_of(file, 1_000, 900_000)
        sent = part.send(ours.fileno())
        assert 0 < sent < len(part)
        ours.close()
        taken = b""
        while more := theirs.recv(1 << 20):
            taken += more
        assert taken + part.read(sent) == CONTENT[1_000:901_000]


def test_a_file_that_is_deleted_and_let_go_of_is_sent_all_the_same(file):
    """Its descriptor, once closed, could be another file's."""
    part = part_of(file, 0, 1_000)
    file.path.unlink()
    del file
    others = [SystemDisk().open(part.file.path, create=True) for _ in range(50)]
    for each in others:
        each.write([b"x" * 1_000], 0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert part.send(ours.fileno()) == 1_000
        assert theirs.recv(2_000) == CONTENT[:1_000]


def test_a_file_that_was_cut_is_told(file):
    part = part_of(file, 0, len(CONTENT))
    file.truncate(5_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert part.send(ours.fileno()) <= 5_000
    with pytest.raises(CorruptSegment, match=r"segment: it ends before position 1048576"):
        part.read(4_000)


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS, errno.EPIPE, None])
def test_where_there_is_no_such_call_nothing_is_taken(file, monkeypatch, error):
    def refuses(*_):
        raise OSError(error, "no")

    monkeypatch.setattr(os, "sendfile", refuses)
    if error is None:
        monkeypatch.delattr(os, "sendfile")
    part = part_of(file, 3, 10)
    assert part.send(0) == 0
    assert part.read() == CONTENT[3:13]


def test_what_is_no_longer_known_to_be_right_is_checked_before_it_is_sent(file):
    checked = []
    part = part_that_is_checked(file, 1_000, 100_000, checked.append)
    part.trust.end(50_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert part.send(ours.fileno()) == 0
    assert part.read(10) == CONTENT[1_010:101_000]
    assert checked == [CONTENT[1_000:101_000]]


def test_what_has_left_the_page_cache_is_checked_and_nothing_is_trusted_that_came_back_with_it(file, monkeypatch):
    checked = []
    part = part_that_is_checked(file, 1_000, 100_000, checked.append)
    monkeypatch.setattr(SystemFile, "cached_share", lambda *_: 0.9)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert part.send(ours.fileno()) == 0
    assert part.read(10) == CONTENT[1_010:101_000]
    assert checked == [CONTENT[1_000:101_000]]
    assert part.trust.begins(11_000_000, 1.0) == 10_000_000


def test_what_was_found_damaged_is_not_trusted_any_more(file):
    """It was in memory all the time: who asked again was sent it."""

    def damaged(_):
        raise CorruptBatch("byte 0: bad CRC")

    part = part_that_is_checked(file, 1_000, 100_000, damaged)
    with pytest.raises(CorruptBatch):
        part.read()
    assert part.trust.floor == 10_000_000


def test_what_has_waited_for_minutes_is_checked(file):
    part = part_of(file, 1_000, 100_000)
    part.clock.advance_ms(301_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert part.send(ours.fileno()) == 0
