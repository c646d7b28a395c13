import errno
import fcntl
import os
import subprocess
import sys
import threading

import pytest

from mainstem.core.locks import DirectoryInUse, DirectoryLock, UnusableDirectory, is_held

HOLD = "import sys, pathlib; from mainstem.core.locks import DirectoryLock; l = DirectoryLock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryInUse, match=f"in use by process {holder.pid}") as told:
            DirectoryLock(tmp_path)
        assert told.value.hint.startswith("stop that process")
        holder.kill()
        holder.wait()
    with DirectoryLock(tmp_path):  # what a killed process leaves behind holds nobody up
        pass


def test_a_full_disk_does_not_keep_it_from_being_taken(tmp_path, monkeypatch):
    """`mainstem clean` could not make room."""

    def full_disk(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full_disk)
    with DirectoryLock(tmp_path), pytest.raises(DirectoryInUse):
        DirectoryLock(tmp_path)


def test_released_it_can_be_taken_again(tmp_path):
    DirectoryLock(tmp_path).release()
    with DirectoryLock(tmp_path), pytest.raises(DirectoryInUse):
        DirectoryLock(tmp_path)


def test_those_who_ask_change_nothing_and_do_not_see_each_other(tmp_path):
    """Two `mainstem status` at once called a stopped node up."""
    assert not is_held(tmp_path)
    DirectoryLock(tmp_path).release()
    path = tmp_path / "lock"
    path.write_text("4711\n")
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as another one does that asks
        assert not is_held(tmp_path)
    assert path.read_text() == "4711\n"
    with DirectoryLock(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_who_asks_does_not_keep_it_from_being_taken(tmp_path):
    """`mainstem up` was refused with "in use by process unknown" while somebody asked for its status."""
    (tmp_path / "lock").touch()
    asking = (tmp_path / "lock").open()
    fcntl.flock(asking, fcntl.LOCK_SH)
    answered = threading.Timer(0.05, asking.close)
    answered.start()
    DirectoryLock(tmp_path).release()
    answered.join()


@pytest.mark.parametrize("below", ["", "below"])
def test_a_file_is_no_directory(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(UnusableDirectory, match=r"expected a directory to write to: found a file$"):
        DirectoryLock(tmp_path / "file" / below)
