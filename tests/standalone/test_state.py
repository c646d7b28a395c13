import errno
import os
import shutil
from pathlib import Path

import pytest

from mainstem.core.locks import DirectoryLock
from mainstem.standalone.state import (
    NotOurDirectory,
    OtherLog,
    OtherProject,
    UpState,
    bind_log,
    bind_project,
    check_directory,
    check_log,
    check_project,
    claim_directory,
    delete_directory,
    is_empty,
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


def a_project(directory):
    directory.mkdir(parents=True)
    (directory / "mainstem.toml").touch()
    return directory


def test_the_data_of_another_project_is_refused(tmp_path):
    """With MAINSTEM_DATA set, `up` of a second project ran the jobs of the first, and its `clean` deleted them."""
    first, second = a_project(tmp_path / "a" / "demo"), a_project(tmp_path / "b" / "demo")
    data = tmp_path / "data"
    data.mkdir()
    claim_directory(data)
    bind_project(data, first, "demo")
    assert bind_project(data, first, "demo").project == str(first)
    for name in ("demo", "shop"):
        with pytest.raises(OtherProject, match=rf"data: expected .* project {second}, found that of {first}$"):
            check_project(data, second, name)


def test_a_project_that_was_moved_goes_on_with_its_data(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    claim_directory(data)
    first = bind_project(data, a_project(tmp_path / "shop"), "shop")
    (tmp_path / "shop").rename(tmp_path / "new")
    moved = bind_project(data, tmp_path / "new", "new")
    assert (moved.project, moved.id) == (str(tmp_path / "new"), first.id)
    bind_project(data, tmp_path / "new", "shop")  # its settings name it
    bind_project(data, a_project(tmp_path / "checkout"), "shop")  # of the same project: both are there

    inside = tmp_path / "new" / ".mainstem"
    inside.mkdir()
    claim_directory(inside)
    assert bind_project(inside, tmp_path / "new", "new").id not in ("", first.id)
    shutil.copytree(tmp_path / "new", tmp_path / "copy")
    assert bind_project(tmp_path / "copy" / ".mainstem", tmp_path / "copy", "copy").name == "copy"


def test_what_was_made_with_another_log_is_refused(tmp_path):
    claim_directory(tmp_path)
    check_log(tmp_path, "one", "here", "hint")
    bind_log(tmp_path, "one")
    bind_log(tmp_path, "one")
    check_log(tmp_path, "one", "here", "hint")
    for found, told in (("two", "two"), ("", "none")):
        with pytest.raises(OtherLog, match=rf"expected the log one, .*, found {told} at k:9092$") as refused:
            check_log(tmp_path, found, "at k:9092", "--bootstrap names it")
        assert refused.value.hint == "--bootstrap names it; or give --data a new directory, to begin anew"


class Killed(BaseException):
    pass


def a_used_directory(data):
    data.mkdir()
    claim_directory(data)
    save(data, UpState(7, "p", "127.0.0.1:1", "http://127.0.0.1:2", 3.0))
    for file in ("lock", "log/.lock", "log/orders-0/0.log", "tables/orders/part"):
        (data / file).parent.mkdir(parents=True, exist_ok=True)
        (data / file).touch()


def test_one_that_was_half_deleted_is_refused_until_the_rest_is_deleted(tmp_path, monkeypatch):
    """`up` once took what a killed `clean` had left for a whole one, and a second `clean` refused it."""
    data, refused = tmp_path / "data", 0
    for survived in range(100):
        a_used_directory(data)
        left = survived

        def or_killed(delete):
            def call(path, *arguments, **options):
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                delete(path, *arguments, **options)

            return call

        with monkeypatch.context() as patched:
            for name in ("unlink", "rmdir"):
                patched.setattr(os, name, or_killed(getattr(os, name)))
            try:
                delete_directory(data)
            except Killed:
                pass
            else:
                break
        if not is_empty(data):
            with pytest.raises(NotOurDirectory, match="found one that was being deleted"):
                claim_directory(data)
            check_directory(data)  # `clean` takes it
            delete_directory(data)
            refused += 1
        else:
            data.rmdir()
        assert not data.exists()
    assert refused > 5
    assert not data.exists()


def test_mount_points_are_emptied(tmp_path, monkeypatch):
    """It ended with a traceback after all was deleted."""
    data = tmp_path / "data"
    a_used_directory(data)
    (data / "lost+found").mkdir()
    rmdir = os.rmdir

    def busy(path, *arguments, **options):
        if Path(path) in (data, data / "log"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        rmdir(path, *arguments, **options)

    monkeypatch.setattr(os, "rmdir", busy)
    delete_directory(data)
    assert sorted(path.name for path in data.rglob("*")) == ["log", "lost+found"]
    assert is_empty(data)
    claim_directory(data)


def test_links_in_it_are_not_followed(tmp_path):
    data = tmp_path / "data"
    a_used_directory(data)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.txt").touch()
    (data / "link").symlink_to(tmp_path / "kept")
    delete_directory(data)
    assert not data.exists()
    assert (tmp_path / "kept" / "thesis.txt").exists()
