import os
import signal
import subprocess
import sys
import threading

import pytest

from mainstem.core.process import PARENT, end_signals, is_there, say_ready, start_child


@pytest.mark.parametrize("supervised", [False, True])
def test_only_a_supervisor_has_its_children_die_with_it(supervised):
    code = (
        "import ctypes; from mainstem.core.process import die_with_parent; die_with_parent()\n"
        "number = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(number)); print(number.value)"  # PR_GET_PDEATHSIG
    )
    environment = {**os.environ, PARENT: str(os.getpid())} if supervised else os.environ
    done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert int(done.stdout) == (signal.SIGKILL if supervised else 0)


def test_a_supervisor_that_has_ended_is_noticed():
    code = "from mainstem.core.process import die_with_parent; die_with_parent()"
    child = subprocess.run(
        [sys.executable, "-c", code], check=False, env={**os.environ, PARENT: "1"}, capture_output=True, text=True
    )
    assert "ParentGone: started by process 1, which has ended" in child.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_files_that_are_closed_are_nobody_elses(tmp_path, closed):
    code = (
        "import os, sys; from mainstem.core.process import open_standard_files; open_standard_files()\n"
        "print('said'); print('said', file=sys.stderr); sys.stdin.read()\n"
        "opened = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR); os.write(opened, b'%d' % opened)\n"
    )
    file = tmp_path / "file"
    command = f'"$1" -c "$2" "$3" {closed}'
    subprocess.run(["sh", "-c", command, "sh", sys.executable, code, str(file)], check=True, stdin=subprocess.DEVNULL)
    assert int(file.read_text()) > 2


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_file_that_has_the_number_of_a_standard_one_is_left_alone(name, tmp_path):
    """What was printed was written into a file of the program, and another's file would have been read."""
    number = ("stdin", "stdout", "stderr").index(name)
    code = (
        "import os, sys; mine = open(sys.argv[1], 'w+'); mine.write('mine'); mine.seek(0)\n"
        "from mainstem.core.process import open_standard_files; open_standard_files()\n"
        "print('said'); print('said', file=sys.stderr); assert sys.stdin.read() == ''\n"
        "sys.stdout.flush(); assert (mine.fileno(), mine.read()) == (int(sys.argv[2]), 'mine')\n"
    )
    file = tmp_path / "mine"
    command = f'exec "$1" -W error -c "$2" "$3" {number} {number}>&-'
    subprocess.run(["sh", "-c", command, "sh", sys.executable, code, str(file)], check=True, stdin=subprocess.DEVNULL)
    assert file.read_text() == "mine"


def test_a_child_that_is_tied_to_us_outlives_the_thread_that_started_it():
    code = "from mainstem.core.process import die_with_parent; die_with_parent(); print(flush=True); input()"
    started = []

    def start():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = start_child([sys.executable, "-c", code], env={**os.environ, PARENT: str(os.getpid())}, **pipes)
        child.stdout.readline()  # it is tied
        started.append(child)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with started[0] as child:
        child.communicate(b"\n", timeout=20)
    assert child.returncode == 0


def test_whether_a_process_is_there():
    assert is_there(os.getpid())
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert not is_there(child.pid)


@pytest.mark.usefixtures("terminal")
def test_a_closed_terminal_ends_a_process_unless_it_is_told_to_stay():
    assert end_signals() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert end_signals() == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ready_is_one_line_on_stdout(capsys):
    say_ready("listening on 127.0.0.1:9092")
    assert capsys.readouterr().out == "listening on 127.0.0.1:9092\n"
