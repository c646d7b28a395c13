import subprocess
import sys

import pytest

from mainstem.core.locks import DirectoryInUse, DirectoryLock

HOLD = "import sys, pathlib; from mainstem.core.locks import DirectoryLock; l = DirectoryLock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryInUse, match=f"in use by process {holder.pid}"):
            DirectoryLock(tmp_path)
        holder.kill()
        holder.wait()
    with DirectoryLock(tmp_path):  # what a killed process leaves behind holds nobody up
        pass


def test_released_it_can_be_taken_again(tmp_path):
    DirectoryLock(tmp_path).release()
    with DirectoryLock(tmp_path), pytest.raises(DirectoryInUse):
        DirectoryLock(tmp_path)
