from mainstem.core.locks import DirectoryLock
from mainstem.standalone.state import UpState, is_up, load, save, state_file
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
