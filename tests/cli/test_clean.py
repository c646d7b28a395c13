import json
import signal
import subprocess
import sys

import psutil
import pytest
from click.testing import CliRunner

from mainstem import embedded
from mainstem.cli.commands import group
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.standalone.state import bind_project, claim_directory, is_up, marker_file
from tests.support.commands import mainstem, the_line
from tests.support.node import wait_for


def clean(*arguments):
    return CliRunner().invoke(group, ["clean", *map(str, arguments)])


def test_the_data_directory_is_deleted_and_the_project_is_not(tmp_path):
    (tmp_path / "mainstem.toml").touch()
    (tmp_path / ".mainstem").mkdir()
    claim_directory(tmp_path / ".mainstem")
    (tmp_path / ".mainstem" / "log").mkdir()
    assert clean(tmp_path, "--yes").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mainstem.toml"]
    assert "nothing there" in clean(tmp_path, "--yes").stdout


def test_what_was_deleted_is_told_to_programs_too(tmp_path):
    data = tmp_path / ".mainstem"
    data.mkdir()
    claim_directory(data)
    for result in ("deleted", "nothing there"):
        done = clean(tmp_path, "--yes", "--json")
        assert json.loads(done.stdout) == {"directory": str(data), "result": result}


def test_one_that_is_a_link_is_emptied_and_stays(tmp_path):
    """It ended with a traceback."""
    elsewhere, data = tmp_path / "elsewhere", tmp_path / ".mainstem"
    (elsewhere / "log").mkdir(parents=True)
    data.symlink_to(elsewhere)
    marker_file(data).write_text('{"format":1}')
    done = clean(tmp_path, "--yes")
    assert (done.exit_code, done.stdout) == (0, f"{data}: emptied\n")
    assert data.is_symlink()
    assert list(elsewhere.iterdir()) == []
    assert "nothing there" in clean(tmp_path, "--yes").stdout


def test_while_it_asks_nothing_is_up(tmp_path):
    data = tmp_path / ".mainstem"
    data.mkdir()
    claim_directory(data)
    command = [sys.executable, "-m", "mainstem", "clean", str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        asked = b""
        while not asked.endswith(b"[y/N]: "):
            asked += process.stderr.read(1)
        assert not is_up(data)
        with DirectoryLock(data):  # it is started meanwhile
            assert b"in use by process" in process.communicate(b"y\n", timeout=60)[1]
    assert process.returncode == 2
    assert marker_file(data).exists()


def test_the_data_of_another_project_is_not_deleted(tmp_path):
    """With MAINSTEM_DATA still set for the one, `clean` of the other deleted it."""
    data, (first, second) = tmp_path / "data", (tmp_path / "first", tmp_path / "second")
    for directory in (data, first, second):
        directory.mkdir()
    for project in (first, second):
        (project / "mainstem.toml").touch()
    claim_directory(data)
    bind_project(data, first, "first")
    done = mainstem("clean", second, "--data", data, "--yes")
    assert the_line(done).startswith(
        f"mainstem: {data}: expected the data directory of the project {second}, found that"
    )
    assert clean(first, "--data", data, "--yes").exit_code == 0
    assert not data.exists()


def test_it_asks_first(tmp_path):
    (tmp_path / ".mainstem").mkdir()
    claim_directory(tmp_path / ".mainstem")
    refused = mainstem("clean", tmp_path, input="n\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "for good? [y/N]" in refused.stderr
    silent = mainstem("clean", tmp_path, stdin=subprocess.DEVNULL)
    assert silent.returncode == 2
    assert "mainstem: expected an answer, found the end of the input (--yes does not ask)" in silent.stderr
    assert (tmp_path / ".mainstem").exists()
    assert mainstem("clean", tmp_path, input="y\n").returncode == 0
    assert not (tmp_path / ".mainstem").exists()


def test_ctrl_c_at_the_question_deletes_nothing(tmp_path):
    (tmp_path / ".mainstem").mkdir()
    claim_directory(tmp_path / ".mainstem")
    command = [sys.executable, "-m", "mainstem", "clean", str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # What a shell starts in the background ignores Ctrl-C, and so do its children.
    hear = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, **pipes, **hear) as process:
        asked = b""
        while not asked.endswith(b"[y/N]: "):
            asked += process.stderr.read(1)
        # A signal between the question and the read of its answer is seen only when that read is over: Python's way.
        wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert b"Traceback" not in process.stderr.read()
    assert (tmp_path / ".mainstem").exists()


def test_what_is_in_use_is_left_alone(tmp_path):
    with DirectoryLock(tmp_path / ".mainstem"):
        claim_directory(tmp_path / ".mainstem")
        assert isinstance(clean(tmp_path, "--yes").exception, DirectoryInUse)
    assert (tmp_path / ".mainstem").exists()


@pytest.mark.parametrize("missing", ["nowhere"])
def test_a_project_that_is_not_there_is_misuse(tmp_path, missing):
    assert clean(tmp_path / missing).exit_code == 2


def test_a_log_that_runs_alone_in_it_is_left_alone(tmp_path):
    data = tmp_path / ".mainstem"
    data.mkdir()
    claim_directory(data)
    with embedded(data / "log"):
        line = the_line(mainstem("clean", tmp_path, "--yes"))
    assert f"{data}/log: in use" in line
    assert (data / "log").is_dir()


def test_any_other_directory_is_left_alone(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").touch()
    line = the_line(mainstem("clean", tmp_path, "--data", home, "--yes"))
    assert f"{home}: expected a data directory of Mainstem, found no mainstem.json (give --data " in line
    assert [path.name for path in home.iterdir()] == ["thesis.txt"]
    marker_file(home).write_text('{"format": 2}')
    line = the_line(mainstem("clean", tmp_path, "--data", home, "--yes"))
    assert f"{home}: data directory of format 2, this program knows 1" in line
