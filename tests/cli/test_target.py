from pathlib import Path

from mainstem.cli.target import DEFAULT_BOOTSTRAP, connect, data_directory
from mainstem.standalone.state import UpState, save


def test_the_data_directory_is_given_or_set_or_the_projects_own(monkeypatch):
    monkeypatch.delenv("MAINSTEM_DATA", raising=False)
    assert data_directory(Path("p")) == Path("p/.mainstem")
    monkeypatch.setenv("MAINSTEM_DATA", "/d")
    assert data_directory(Path("p")) == Path("/d")
    assert data_directory(Path("p"), Path("/given")) == Path("/given")


def test_a_command_speaks_to_the_projects_own_log(tmp_path, monkeypatch):
    monkeypatch.delenv("MAINSTEM_DATA", raising=False)
    assert connect(None, tmp_path).bootstrap == DEFAULT_BOOTSTRAP
    (tmp_path / ".mainstem").mkdir()
    save(tmp_path / ".mainstem", UpState(1, "p", "127.0.0.1:7777", "http://127.0.0.1:1", 0.0))
    assert connect(None, tmp_path).bootstrap == "127.0.0.1:7777"
    assert connect("127.0.0.1:8888", tmp_path).bootstrap == "127.0.0.1:8888"
