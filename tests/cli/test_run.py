import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group


@pytest.mark.parametrize("process", ["gateway", "connect", "spark"])
def test_every_process_can_be_started_alone(process):
    usage = CliRunner().invoke(group, ["run", process, "--help"])
    assert usage.exit_code == 0
    for option in ("--bootstrap", "--gateway", "--data"):
        assert option in usage.stdout


def test_the_address_of_the_log_must_be_given(tmp_path):
    result = CliRunner().invoke(group, ["run", "gateway", str(tmp_path), "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "Missing option" in result.output
