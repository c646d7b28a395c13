import json

from click.testing import CliRunner

from mainstem.cli import group
from mainstem.standalone.doctor import Finding
from tests.support.commands import mainstem


def test_findings_are_printed_and_something_bad_is_exit_1(tmp_path, monkeypatch):
    found = [Finding("ok", "disk", "much"), Finding("bad", "Java", "none")]
    monkeypatch.setattr("mainstem.standalone.doctor.examine", lambda data: found)
    result = CliRunner().invoke(group, ["doctor", "--data", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)[1] == {"found": "none", "verdict": "bad", "what": "Java"}


def test_this_machine_is_examined(tmp_path):
    result = CliRunner().invoke(group, ["doctor", "--data", str(tmp_path)])
    assert "Python 3.11 or newer" in result.stdout


def test_a_place_that_takes_no_file_is_exit_1():
    done = mainstem("doctor", "--data", "/proc")
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("bad")]
    assert "a durable write" in line
