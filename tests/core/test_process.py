import os
import subprocess
import sys
import threading

from mainstem.core.process import PARENT, die_with_parent, say_ready, start_child


def test_without_a_supervisor_nothing_is_asked_of_the_kernel():
    die_with_parent({})


def test_a_supervisor_that_has_ended_is_noticed():
    code = "from mainstem.core.process import die_with_parent; die_with_parent()"
    child = subprocess.run(
        [sys.executable, "-c", code], check=False, env={**os.environ, PARENT: "1"}, capture_output=True, text=True
    )
    assert "ParentGone: started by process 1, which has ended" in child.stderr


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


def test_ready_is_one_line_on_stdout(capsys):
    say_ready("listening on 127.0.0.1:9092")
    assert capsys.readouterr().out == "listening on 127.0.0.1:9092\n"
