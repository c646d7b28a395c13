import errno
import os

import pytest

from mainstem.serve import IndexDamaged, OtherShape
from mainstem.serve.directory import IndexDirectory
from mainstem.serve.errors import IndexInUse, IndexUnavailable


def test_it_is_held_by_one_at_a_time(tmp_path):
    first = IndexDirectory.open(tmp_path, "kind", {})
    with pytest.raises(IndexInUse, match="somebody else has it open"):
        IndexDirectory.open(tmp_path, "kind", {})
    first.close()
    IndexDirectory.open(tmp_path, "kind", {}).close()


def test_what_was_never_committed_is_begun_again(tmp_path):
    """An engine that was killed while it made its files could not open them."""
    directory = IndexDirectory.open(tmp_path, "kind", {"a": 1})
    (directory.files / "half made").touch()
    directory.close()
    directory = IndexDirectory.open(tmp_path, "kind", {"a": 2})
    assert list(directory.files.iterdir()) == []
    directory.committed()
    (directory.files / "whole").touch()
    directory.close()
    directory = IndexDirectory.open(tmp_path, "kind", {"a": 2})
    assert [path.name for path in directory.files.iterdir()] == ["whole"]
    directory.check_found(found=True)
    with pytest.raises(IndexDamaged, match="files are missing"):
        directory.check_found(found=False)
    directory.close()


@pytest.mark.parametrize(("kind", "shape"), [("other", {}), ("kind", {"a": 1})])
def test_a_committed_index_of_another_shape_is_refused(tmp_path, kind, shape):
    directory = IndexDirectory.open(tmp_path, "kind", {})
    directory.committed()
    directory.close()
    with pytest.raises(OtherShape, match=r"found format 2 kind \{\}"):
        IndexDirectory.open(tmp_path, kind, shape)
    IndexDirectory.open(tmp_path, "kind", {}).close()  # nobody holds it now


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_files_of_nobody_knows_what_are_refused(tmp_path, content):
    (tmp_path / "index").mkdir()
    if content is not None:
        (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(IndexDamaged, match=r"index\.json"):
        IndexDirectory.open(tmp_path, "kind", {})


def test_what_an_engine_raises_is_told_apart(tmp_path):
    directory = IndexDirectory.open(tmp_path, "kind", {})

    def raised(error: BaseException) -> None:
        with directory.explained():
            raise error

    for number in (errno.ENOSPC, errno.EMFILE):
        with pytest.raises(IndexUnavailable, match=os.strerror(number)):
            raised(Exception(f"IO error: {os.strerror(number)}: /some/file"))
    with pytest.raises(IndexInUse):
        raised(Exception("IO error: lock hold by current process"))
    with pytest.raises(IndexDamaged, match="two lines"):
        raised(Exception("two\nlines"))
    with pytest.raises(OtherShape):
        raised(OtherShape("ours"))
    for bug in (TypeError, KeyError, KeyboardInterrupt):
        with pytest.raises(bug):
            raised(bug("x"))
    directory.close()
