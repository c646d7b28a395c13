import errno
import mmap
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstem.log import SystemDisk
from mainstem.log import disk as disk_module
from mainstem.log.disk import SystemFile
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import drop_from_page_cache, skip_unless_told_of_the_page_cache


@pytest.fixture(params=["system", "simulated"])
def disk(request, tmp_path):
    return SystemDisk() if request.param == "system" else SimulatedDisk(tmp_path)


def test_pieces_are_written_one_after_the_other(disk, tmp_path):
    file = disk.open(tmp_path / "file", create=True)
    file.write([b"one", bytearray(b"two"), memoryview(b"three")], 0)
    file.write([b"TWO"], 3)
    file.sync()
    assert file.read(100, 0) == b"oneTWOthree"
    assert file.read(3, 3) == b"TWO"
    assert file.read(3, 50) == b""
    assert file.size() == disk.file_size(tmp_path / "file") == 11
    file.truncate(4)
    assert disk.read_file(tmp_path / "file") == b"oneT"


def test_more_pieces_than_one_call_takes(disk, tmp_path):
    file = disk.open(tmp_path / "file", create=True)
    file.write([bytes([n % 251]) for n in range(3_000)], 0)
    assert file.read(4_000, 0) == bytes(n % 251 for n in range(3_000))


def test_what_the_disk_refuses_names_the_file(tmp_path):
    full = SystemFile(tmp_path / "full", os.open("/dev/full", os.O_RDWR))
    with pytest.raises(OSError, match=r"No space left on device: '.*/full'"):
        full.write([b"one"], 0)
    pipe, other_end = os.pipe()
    os.close(other_end)
    for call in (SystemFile.sync, lambda file: file.truncate(0)):
        with pytest.raises(OSError, match=r"Invalid argument: '.*/pipe'"):
            call(SystemFile(tmp_path / "pipe", os.dup(pipe)))
    os.close(pipe)


def test_a_cached_read_gives_what_was_just_written(disk, tmp_path):
    file = disk.open(tmp_path / "file", create=True)
    file.write([b"hello"], 0)
    buffer = memoryview(bytearray(8))
    assert file.read_cached(buffer, 0) in (5, -1)  # -1: this file system cannot say
    assert file.read_cached(buffer[:3], 2) in (3, -1)


def test_names(disk, tmp_path):
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "missing")
    disk.make_directory(tmp_path / "d")
    disk.make_directory(tmp_path / "d")
    disk.write_file(tmp_path / "d" / "b", b"2")
    disk.write_atomically(tmp_path / "d" / "a", b"1")
    assert disk.list(tmp_path / "d") == [tmp_path / "d" / "a", tmp_path / "d" / "b"]
    disk.rename(tmp_path / "d" / "b", tmp_path / "d" / "c")
    disk.unlink(tmp_path / "d" / "b")
    disk.sync_directory(tmp_path / "d")
    assert disk.exists(tmp_path / "d" / "c")
    assert not disk.exists(tmp_path / "d" / "b")
    assert disk.is_directory(tmp_path / "d")
    assert not disk.is_directory(tmp_path / "d" / "a")
    disk.rename(tmp_path / "d", tmp_path / "e")
    disk.remove_tree(tmp_path / "e")
    assert disk.list(tmp_path) == []


def test_what_is_to_be_durable_is_synced_by_the_system(tmp_path, monkeypatch):
    synced = []

    def recording(sync):
        def call(descriptor):
            sync(descriptor)
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

        return call

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, recording(getattr(os, name)))
    disk = SystemDisk()
    file = disk.open(tmp_path / "file", create=True)
    file.write([b"content"], 0)
    assert synced == []
    file.sync()
    assert synced == [tmp_path / "file"]
    disk.sync_directory(tmp_path)
    assert synced[1:] == [tmp_path]
    disk.write_atomically(tmp_path / "other", b"content")
    assert synced[2:] == [tmp_path / "other.new", tmp_path]


def test_a_file_stays_readable_while_somebody_has_it(disk, tmp_path):
    file = disk.open(tmp_path / "file", create=True)
    file.write([b"still here"], 0)
    disk.unlink(tmp_path / "file")
    assert file.read(10, 0) == b"still here"


def test_a_file_is_closed_with_its_last_reference(tmp_path):
    file = SystemDisk().open(tmp_path / "file", create=True)
    descriptor = file._descriptor
    os.fstat(descriptor)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.integers(1, 20))
def test_a_short_write_is_continued(pieces, at_most):
    data = b"".join(pieces)
    written = bytearray(len(data))

    def short(descriptor, buffers, position):
        part = b"".join(buffers)[:at_most]
        written[position : position + len(part)] = part
        return len(part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_module.os, "pwritev", short)
        patch.setattr(disk_module.os, "pwrite", lambda d, rest, position: short(d, [bytes(rest)], position))
        assert disk_module._write_all(99, list(pieces), 0) == len(data)
    assert written == data


@given(st.lists(st.integers(0, 700_000), max_size=6), st.integers(0, 2_000))
def test_much_is_written_in_steps_that_take_small_pages(sizes, small):
    content = bytes(range(251)) * 3_000
    pieces = [content[:size] for size in sizes] + [b"%d" % number for number in range(small)]
    steps = list(disk_module._steps(pieces))
    assert b"".join(b"".join(step) for step in steps) == b"".join(pieces)
    assert all(len(step) <= 1_024 and sum(map(len, step)) <= 2**18 for step in steps)
    if len(steps) > 1:
        assert all(len(step) == 1_024 or sum(map(len, step)) == 2**18 for step in steps[:-1])


def test_a_write_of_nothing_means_the_disk_is_full(monkeypatch):
    monkeypatch.setattr(disk_module.os, "pwritev", lambda *_: 1)
    monkeypatch.setattr(disk_module.os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        disk_module._write_all(99, [b"data"], 0)


def test_the_simulated_disk_loses_what_was_not_synced(tmp_path):
    disk = SimulatedDisk(tmp_path)
    file = disk.open(tmp_path / "file", create=True)
    disk.sync_directory(tmp_path)
    file.write([b"a" * 5_000], 0)
    file.sync()
    file.write([b"b" * 5_000], 2_000)
    lost = disk.after_power_cut(lambda most: 0)
    assert lost.read_file(tmp_path / "file") == b"a" * 5_000
    kept = disk.after_power_cut(lambda most: most)
    assert kept.read_file(tmp_path / "file") == b"a" * 2_000 + b"b" * 5_000
    choices = iter([0, 0, 1, 2])  # no name, not the first page, but the second, and the largest size
    torn = disk.after_power_cut(lambda most: min(next(choices), most))
    assert torn.read_file(tmp_path / "file")[:4_096] == b"a" * 4_096
    assert torn.read_file(tmp_path / "file")[4_096:5_000] == b"b" * 904


BLOCK = 2**19


def aligned(size):
    return memoryview(mmap.mmap(-1, size))


def test_a_read_around_the_cache_gives_the_same(disk, tmp_path):
    file = disk.open(tmp_path / "f", create=True)
    content = os.urandom(10_000)
    file.write([content], 0)
    buffer = aligned(8_192)
    assert file.read_around_cache(buffer, 0, BLOCK) == 8_192
    assert buffer == content[:8_192]
    disk.unlink(tmp_path / "f")
    assert file.read_around_cache(buffer, 8_192, BLOCK) == 10_000 - 8_192
    assert buffer[: 10_000 - 8_192] == content[8_192:]


def test_a_read_around_the_cache_is_made_a_block_at_a_time(tmp_path, monkeypatch):
    content = os.urandom(40_000)
    (tmp_path / "f").write_bytes(content)
    system_preadv, system_open, calls = os.preadv, os.open, []

    def preadv(descriptor, buffers, position):
        calls.append((position, len(buffers[0])))
        return system_preadv(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "open", lambda path, flags, *mode: system_open(path, flags & ~os.O_DIRECT, *mode))
    file, buffer = SystemDisk().open(tmp_path / "f"), aligned(40_960)
    assert file.read_around_cache(buffer[:24_576], 4_096, 8_192) == 24_576
    assert buffer[:24_576] == content[4_096:][:24_576]
    assert calls == [(4_096, 4_096), (8_192, 8_192), (16_384, 8_192), (24_576, 4_096)]
    assert file.read_around_cache(buffer, 0, 8_192) == 40_000
    assert buffer[:40_000] == content


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOENT, errno.EMFILE])
def test_a_file_system_that_only_reads_through_the_cache(tmp_path, monkeypatch, error):
    file = SystemDisk().open(tmp_path / "f", create=True)
    file.write([b"content"], 0)
    buffer, system_open = aligned(4_096), os.open

    def without(path, flags, *mode):
        if flags & os.O_DIRECT:
            raise OSError(error, os.strerror(error))
        return system_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", without)
    if error == errno.EMFILE:
        with pytest.raises(OSError, match="Too many open files"):
            file.read_around_cache(buffer, 0, BLOCK)
    else:
        assert file.read_around_cache(buffer, 0, BLOCK) == 7
        assert buffer[:7] == b"content"


@pytest.mark.parametrize("how", ["refused", "short"])
def test_a_read_around_the_cache_that_the_file_system_does_not_do_whole(tmp_path, monkeypatch, how):
    file = SystemDisk().open(tmp_path / "f", create=True)
    content = os.urandom(20_000)
    file.write([content], 0)
    system_preadv, calls = os.preadv, []

    def preadv(descriptor, buffers, position):
        calls.append(position)
        if len(calls) > 1:
            return system_preadv(descriptor, buffers, position)
        if how == "refused":
            raise OSError(errno.EINVAL, "Invalid argument")
        return system_preadv(descriptor, [buffers[0][:4_096]], position)

    monkeypatch.setattr(os, "preadv", preadv)
    buffer = aligned(16_384)
    assert file.read_around_cache(buffer, 0, BLOCK) == 16_384
    assert buffer == content[:16_384]


def test_what_is_in_the_page_cache_is_known(tmp_path):
    file = SystemDisk().open(tmp_path / "f", create=True)
    file.write([os.urandom(100_000)], 0)
    skip_unless_told_of_the_page_cache(file)
    assert file.cached_share(100_000, 0) == 1
    file.sync()
    drop_from_page_cache(file, 100_000)
    assert file.cached_share(100_000, 0) < 1
    assert file.read(10, 50_000)
    assert file.cached_share(10, 50_000) == 1
    assert 0 < file.cached_share(100_000, 0) <= 1


def test_a_system_that_does_not_tell_what_is_in_the_page_cache(tmp_path, monkeypatch):
    file = SystemDisk().open(tmp_path / "f", create=True)
    for answer in (None, lambda *_: -1):
        monkeypatch.setattr(disk_module, "_cachestat", lambda answer=answer: answer)
        assert file.cached_share(100, 0) is None


def test_a_file_system_of_which_the_system_finds_nothing_in_the_page_cache_does_not_tell(tmp_path, monkeypatch):
    """As overlayfs: its pages are those of another file."""
    monkeypatch.setattr(disk_module, "_tells", {})
    monkeypatch.setattr(disk_module, "_cachestat", lambda: lambda *_: 0)
    file = SystemDisk().open(tmp_path / "f", create=True)
    file.write([b"x" * 100_000], 0)
    assert file.cached_share(100_000, 0) is None
    assert SystemDisk().open(tmp_path / "g", create=True).cached_share(10, 0) is None
