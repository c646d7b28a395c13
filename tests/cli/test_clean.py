import pytest
from click.testing import CliRunner

from mainstem.cli import group
from mainstem.core.locks import DirectoryInUse, DirectoryLock


def clean(*arguments):
    return CliRunner().invoke(group, ["clean", *map(str, arguments)])


def test_the_data_directory_is_deleted_and_the_project_is_not(tmp_path):
    (tmp_path / "mainstem.toml").touch()
    (tmp_path / ".mainstem" / "log").mkdir(parents=True)
    assert clean(tmp_path, "--yes").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mainstem.toml"]
    assert "nothing there" in clean(tmp_path, "--yes").stdout


def test_it_asks_first(tmp_path):
    (tmp_path / ".mainstem").mkdir()
    result = CliRunner().invoke(group, ["clean", str(tmp_path)], input="n\n")
    assert result.exit_code == 1
    assert (tmp_path / ".mainstem").exists()


def test_what_is_in_use_is_left_alone(tmp_path):
    with DirectoryLock(tmp_path / ".mainstem"):
        assert isinstance(clean(tmp_path, "--yes").exception, DirectoryInUse)
    assert (tmp_path / ".mainstem").exists()


@pytest.mark.parametrize("missing", ["nowhere"])
def test_a_project_that_is_not_there_is_misuse(tmp_path, missing):
    assert clean(tmp_path / missing).exit_code == 2
