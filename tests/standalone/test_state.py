import pytest

from mainstem.core.locks import DirectoryLock
from mainstem.standalone.state import (
    NotOurDirectory,
    UpState,
    check_directory,
    claim_directory,
    is_up,
    load,
    marker_file,
    save,
    state_file,
)
from mainstem.standalone.supervisor import ChildState


def test_what_is_saved_is_loaded(tmp_path):
    state = UpState(7, "p", "127.0.0.1:1", "http://127.0.0.1:2", 3.0, [ChildState("log", "running", 8)])
    save(tmp_path, state)
    assert load(tmp_path) == state


def test_nothing_or_another_format_is_no_state(tmp_path):
    assert load(tmp_path) is None
    state_file(tmp_path).write_text('{"pid": "seven"}')
    assert load(tmp_path) is None


def test_the_lock_tells_whether_it_is_up(tmp_path):
    assert not is_up(tmp_path)
    with DirectoryLock(tmp_path):
        assert is_up(tmp_path)
    assert not is_up(tmp_path)


def test_an_empty_directory_becomes_ours_and_stays_so(tmp_path):
    with DirectoryLock(tmp_path):
        with pytest.raises(NotOurDirectory):
            check_directory(tmp_path)
        claim_directory(tmp_path)
        (tmp_path / "log").mkdir()
        claim_directory(tmp_path)
        check_directory(tmp_path)


def test_one_that_up_has_used_before_there_were_markers_gets_one(tmp_path):
    save(tmp_path, UpState(7, "p", "127.0.0.1:1", "http://127.0.0.1:2", 3.0))
    (tmp_path / "log").mkdir()
    claim_directory(tmp_path)
    check_directory(tmp_path)


def test_what_holds_something_else_or_a_later_format_is_refused(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(NotOurDirectory, match="expected a data directory of Mainstem"):
        claim_directory(tmp_path)
    assert not marker_file(tmp_path).exists()
    marker_file(tmp_path).write_text('{"format": 2}')
    with pytest.raises(NotOurDirectory, match="data directory of format 2, this program knows 1"):
        claim_directory(tmp_path)
