import os
import subprocess
import sys

import click
import pytest

from mainstem.cli.commands import extra_of, fail, for_people
from mainstem.core import Retriable, UserError
from mainstem.core.process import PARENT
from tests.support.commands import every_command, mainstem, the_line

FAIL = """
import sys
from mainstem.cli.commands import fail
from mainstem.core.errors import Retriable, Superseded, UserError
fail({"user": UserError, "later": Retriable, "over": Superseded}[sys.argv[1]]("expected a, found b", hint="do c"))
"""


@pytest.mark.parametrize(
    ("kind", "supervised", "code"),
    [
        ("user", False, 2),
        ("later", False, 2),
        ("over", False, 2),
        ("user", True, 2),
        ("later", True, 75),
        ("over", True, 3),
    ],
)
def test_a_failure_is_one_line_and_its_exit_code_says_who_mends_it(kind, supervised, code):
    environment = os.environ | ({PARENT: str(os.getpid())} if supervised else {})
    done = subprocess.run(
        [sys.executable, "-c", FAIL, kind], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, "mainstem: expected a, found b (do c)\n")


def test_what_somebody_gave_neither_breaks_the_line_nor_moves_the_cursor(capfd):
    with pytest.raises(SystemExit):
        fail(UserError("topic a\nb\x1b[2J’s: expected a name"))
    assert capfd.readouterr().err == "mainstem: topic a\\nb\\u001b[2J’s: expected a name\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["upp"], "No such command 'upp' (`mainstem --help` says what it takes)"),
        (["topic", "create"], "Missing argument 'NAME' (`mainstem topic create --help` says what it takes)"),
        (["tail", "t", "-n", "0"], "Invalid value for '-n' / '--count': 0 is not in the range x>=1"),
        (["plan", "/nowhere"], "Invalid value for 'PROJECT': Directory '/nowhere' does not exist"),
    ],
)
def test_misuse_is_one_line(arguments, line):
    assert the_line(mainstem(*arguments)).startswith(f"mainstem: {line}")


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in every_command()])
def test_a_command_says_in_a_few_words_what_it_does_and_each_option_what_it_is(name, command):
    """Nearly every line of `mainstem --help` was cut."""
    assert 0 < len(command.short_help or "") <= 45
    assert [each.name for each in command.params if isinstance(each, click.Option) and not each.help] == []


def test_the_default_of_bootstrap_is_told_where_there_is_one():
    assert "[default: the project's, else 127.0.0.1:9092]" in " ".join(mainstem("status", "--help").stdout.split())


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
    assert for_people(ExceptionGroup("", [ExceptionGroup("", [inner, Retriable("x")])])) is inner
    assert for_people(ExceptionGroup("", [inner, ValueError("a bug")])) is None


RAISE = """
import sys
from mainstem.cli import commands
def fails(**_):
    raise eval(sys.argv[1])
commands.group.main = fails
commands.main()
"""


def raising(error, **environment):
    return subprocess.run(
        [sys.executable, "-c", RAISE, error],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_bug_shows_where_it_is_and_is_not_the_answer_no():
    """`mainstem audit` ended with 1, as it does where records are lost."""
    done = raising("ValueError('x')")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "ValueError: x")
    done = raising("ExceptionGroup('', [ValueError('x')])")
    assert (done.returncode, "ValueError: x" in done.stderr) == (2, True)
    assert raising("ValueError('x')", **{PARENT: str(os.getpid())}).returncode == 75


def test_what_the_machine_refuses_is_one_line():
    line = the_line(raising("OSError(28, 'No space left on device')"))
    assert line == "mainstem: No space left on device (make room on the disk)"
    line = the_line(raising("ExceptionGroup('', [OSError(13, 'Permission denied', '/x/y')])"))
    assert line == "mainstem: /x/y: Permission denied (check its owner and permissions)"


def test_output_that_nobody_reads_is_neither_yes_nor_no():
    read, write = os.pipe()
    os.close(read)
    for stderr in (subprocess.PIPE, write):
        command = [sys.executable, "-m", "mainstem", "plan", "--help"]
        done = subprocess.run(command, stdout=write, stderr=stderr, text=True, check=False)
        assert (done.returncode, done.stderr or "") == (141, "")
    done = subprocess.run([sys.executable, "-m", "mainstem", "upp"], stderr=write, check=False)
    assert done.returncode == 2
    os.close(write)


def test_output_that_has_no_room_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "mainstem", "plan", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert the_line(done) == "mainstem: No space left on device (make room on the disk)"


INTERRUPT = """
import signal, sys
module = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, *_):
        if name == module:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
from mainstem.cli import main
sys.meta_path.insert(0, Interrupt())
main()
"""


@pytest.mark.parametrize("module", ["click", "mainstem.core.process", "kio.static.primitive", "mainstem.cli.topic"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(module):
    command = [sys.executable, "-c", INTERRUPT, module, "topic", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "")


def test_garbage_is_collected_once_a_command_is_imported():
    program = (
        "import gc, sys\n"
        "from mainstem import cli\n"
        "from mainstem.cli import commands\n"
        "commands.main = lambda: print(gc.isenabled(), commands.group.get_command(None, 'tail').name, gc.isenabled())\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False tail True\n"
