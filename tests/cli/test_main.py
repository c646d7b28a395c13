import os
import subprocess
import sys

import pytest

from mainstem.cli import extra_of, first_of_ours
from mainstem.core import Retriable, UserError
from mainstem.core.process import PARENT

FAIL = """
import sys
from mainstem.cli import fail
from mainstem.core import Retriable, UserError
fail({"user": UserError, "later": Retriable}[sys.argv[1]]("expected a, found b", hint="do c"))
"""


@pytest.mark.parametrize(
    ("kind", "supervised", "code"), [("user", False, 2), ("later", False, 2), ("user", True, 2), ("later", True, 75)]
)
def test_a_failure_is_one_line_and_its_exit_code_says_who_mends_it(kind, supervised, code):
    environment = os.environ | ({PARENT: str(os.getpid())} if supervised else {})
    done = subprocess.run(
        [sys.executable, "-c", FAIL, kind], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, "mainstem: expected a, found b (do c)\n")


def test_an_unknown_command_is_misuse():
    done = subprocess.run([sys.executable, "-m", "mainstem", "upp"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such command 'upp'" in done.stderr


def test_a_module_that_an_extra_brings_is_known_by_it():
    assert [extra_of(name) for name in ("uvicorn", "psycopg2.extras", "pyspark.sql", "numpy")] == [
        "gateway",
        "postgres",
        "spark",
        "spark",
    ]
    assert extra_of("mainstem.nothing") is None


def test_an_error_in_a_group_of_tasks_is_found():
    inner = UserError("port 9092: in use")
    assert first_of_ours(ExceptionGroup("", [ExceptionGroup("", [inner, Retriable("x")])])) is inner
    assert first_of_ours(ExceptionGroup("", [inner, ValueError("a bug")])) is None
