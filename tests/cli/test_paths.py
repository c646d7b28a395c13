import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group


@pytest.mark.parametrize(
    "command",
    [
        ["log", "start"],
        ["log", "repair", "t", "0"],
        ["up", "."],
        ["clean", "."],
        ["plan", "."],
        ["run", "serve", "."],
        ["doctor"],
        ["topic", "list"],
    ],
)
def test_a_directory_whose_variable_is_not_set_is_not_the_current_one(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, [*command, "--data", ""])
    assert done.exit_code == 2
    assert "'--data': expected a directory, found an empty text" in done.output
    assert list(tmp_path.iterdir()) == []
