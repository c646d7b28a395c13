"""Files that environments share: whole or not there, whoever makes and removes them at the same time."""

import multiprocessing
import os
import shutil

import pytest

from mainstem.process import shared_files
from mainstem.process.shared_files import remove_unused, share, sizes

FILES = {"release": 4, "bin/java": 7, "lib/deep/modules": 9}


@pytest.fixture
def environment(tmp_path):
    def make(name):
        for file, size in FILES.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)
        return tmp_path / name

    return make


def test_files_of_all_depths_are_linked_and_looked_after(environment, tmp_path):
    own, room = environment("own"), tmp_path / "cache" / "room"
    shared = share(room, "abc", own, FILES)
    assert shared == room / "abc"
    assert all((shared / file).samefile(own / file) for file in FILES)
    assert sizes(shared, [".", "bin", "lib"]) == {"release": 4, "bin/java": 7}
    (shared / "lib/deep/modules").unlink()
    share(room, "abc", own, FILES)
    assert (shared / "lib/deep/modules").samefile(own / "lib/deep/modules")
    room.chmod(0o500)  # what is there serves, also where nothing can be written
    assert share(room, "abc", own, FILES) == shared
    room.chmod(0o700)


def test_a_name_that_another_process_had_is_in_nobodys_way(environment, tmp_path):
    """Containers that share a cache have the same process ids: one removed what the other was making."""
    room = tmp_path / "room"
    other = room / f"abc.{os.getpid()}"
    other.mkdir(parents=True)
    (other / "half-made").touch()
    shared = share(room, "abc", environment("own"), FILES)
    assert sizes(shared, ["bin"]) == {"bin/java": 7}
    assert (other / "half-made").is_file()
    remove_unused(room)
    assert [path.name for path in room.iterdir() if path.is_dir()] == ["abc"]


def test_what_is_being_made_is_not_removed_as_unused(environment, tmp_path, monkeypatch):
    """Without a name in it yet it was nobody's: the other process had a directory without some of its files."""
    room, own = tmp_path / "room", environment("own")
    context, link = multiprocessing.get_context("fork"), os.link
    begun = context.Event()
    # Forked before there is a lock, which it would inherit.
    remover = context.Process(target=lambda: begun.wait(60) and remove_unused(room))
    remover.start()

    def slow_link(source, target):
        if not begun.is_set():
            begun.set()
            remover.join(0.5)
        link(source, target)

    monkeypatch.setattr(shared_files.os, "link", slow_link)
    shared = share(room, "abc", own, FILES)
    remover.join(60)
    assert remover.exitcode == 0
    assert sizes(shared, [".", "bin", "lib/deep"]) == FILES


def test_many_at_once_all_find_it_whole(environment, tmp_path):
    room, owns = tmp_path / "room", [environment(f"own{number}") for number in range(4)]
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_share_and_remove, args=(room, own)) for own in owns]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    for own in owns:
        shutil.rmtree(own)
    remove_unused(room)
    assert [path.name for path in room.iterdir()] == ["lock"]


def _share_and_remove(room, own):
    for _ in range(50):
        shared = share(room, "abc", own, FILES)
        assert sizes(shared, [".", "bin", "lib/deep"]) == FILES
        remove_unused(room)
