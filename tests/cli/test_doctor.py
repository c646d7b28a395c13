import json
import platform
import re

from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.standalone.doctor import Finding
from tests.support.commands import mainstem


def test_findings_are_printed_and_something_bad_is_exit_1(tmp_path, monkeypatch):
    found = [Finding("ok", "disk", "much"), Finding("bad", "Java", "none")]
    monkeypatch.setattr("mainstem.standalone.doctor.examine", lambda data: found)
    result = CliRunner().invoke(group, ["doctor", "--data", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)[1] == {"found": "none", "verdict": "bad", "what": "Java"}


def test_people_see_what_programs_are_told(tmp_path):
    document, table = (
        CliRunner().invoke(group, ["doctor", "--data", str(tmp_path), *options]) for options in (["--json"], [])
    )
    found = {(each["verdict"], each["what"]): each["found"] for each in json.loads(document.stdout)}
    for verdict, what in found:
        assert re.search(rf"^{verdict} +{re.escape(what)} ", table.stdout, re.MULTILINE), what
    assert found["ok", "Python 3.11 or newer"] == platform.python_version()


def test_a_place_that_takes_no_file_is_exit_1():
    done = mainstem("doctor", "--data", "/proc")
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("bad")]
    assert "a durable write" in line
