import json

from click.testing import CliRunner

from mainstem.cli import group
from mainstem.standalone.doctor import Finding


def test_findings_are_printed_and_something_bad_is_exit_1(tmp_path, monkeypatch):
    found = [Finding("ok", "disk", "much"), Finding("bad", "Java", "none")]
    monkeypatch.setattr("mainstem.standalone.doctor.examine", lambda data: found)
    result = CliRunner().invoke(group, ["doctor", "--data", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)[1] == {"found": "none", "verdict": "bad", "what": "Java"}


def test_this_machine_is_examined(tmp_path):
    result = CliRunner().invoke(group, ["doctor", "--data", str(tmp_path)])
    assert "Python 3.11 or newer" in result.stdout
