import os
import subprocess
import sys

from mainstem.core.process import PARENT, die_with_parent, say_ready


def test_without_a_supervisor_nothing_is_asked_of_the_kernel():
    die_with_parent({})


def test_a_supervisor_that_has_ended_is_noticed():
    code = "from mainstem.core.process import die_with_parent; die_with_parent()"
    child = subprocess.run(
        [sys.executable, "-c", code], check=False, env={**os.environ, PARENT: "1"}, capture_output=True, text=True
    )
    assert "ParentGone: started by process 1, which has ended" in child.stderr


def test_ready_is_one_line_on_stdout(capsys):
    say_ready("listening on 127.0.0.1:9092")
    assert capsys.readouterr().out == "listening on 127.0.0.1:9092\n"
