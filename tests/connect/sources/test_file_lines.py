import os
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sources.file_lines import (
    FilePosition,
    forerunners,
    has_content,
    is_same,
    moved,
    original,
    read_lines,
    start,
    unordered,
)


@contextmanager
def file_of(path, data):
    path.write_bytes(data)
    with path.open("rb") as file:
        yield file


def grow(path, data):
    with path.open("ab") as file:
        file.write(data)


def read_all(file, *, size=64, max_line=20, at_end=True):
    """All lines, chunk by chunk, as the source reads them."""
    position, lines = start(file), []
    while True:
        chunk = read_lines(file, position, size=size, max_line=max_line, at_end=at_end)
        if chunk.position == position.position:
            return lines, position
        lines += chunk.lines
        position = moved(file, position, chunk)
        assert is_same(file, position)


short_lines = st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=30)


@given(short_lines, st.booleans(), st.integers(21, 80))
def test_lines_come_as_they_were_whatever_the_chunk(tmp_path_factory, lines, last_is_ended, size):
    text = b"\n".join(lines) + (b"\n" if last_is_ended else b"")
    expected = text.split(b"\n")
    expected = expected[:-1] if expected[-1] == b"" else expected
    with file_of(tmp_path_factory.getbasetemp() / "lines", text) as file:
        found, position = read_all(file, size=size)
    assert [line.data for line in found] == expected
    assert all(line.whole for line in found)
    assert position.position == len(text)
    for line in found:
        assert text[line.position :].startswith(line.data)


@given(st.lists(st.binary(max_size=70).map(lambda b: b.replace(b"\r", b"")), max_size=6), st.integers(21, 50))
def test_no_byte_of_a_long_line_is_lost(tmp_path_factory, parts, size):
    text = b"\n".join(parts)
    with file_of(tmp_path_factory.getbasetemp() / "long", text) as file:
        found, position = read_all(file, size=size)
    assert position.position == len(text)
    assert b"".join(line.data for line in found) == text.replace(b"\n", b"")
    for line in found:
        assert line.whole == (len(line.data) <= 20 and _starts(text, line) and _ends(text, line))


def _starts(text, line):
    return line.position == 0 or text[line.position - 1 : line.position] == b"\n"


def _ends(text, line):
    end = line.position + len(line.data)
    return end == len(text) or text[end : end + 1] == b"\n"


@pytest.mark.parametrize("end", [b"", b"\nnext\n", b"\r\nnext\n"])
@pytest.mark.parametrize("size", [30, 64, 1000])
def test_a_piece_is_no_larger_than_a_line_may_be_however_much_is_read_at_once(tmp_path, size, end):
    """A piece was all that was read: more than a record of the quarantine may hold."""
    long = b"0123456789\r" * 20 + b"z"
    with file_of(tmp_path / "a", long + end) as file:
        found, position = read_all(file, size=size)
    assert position.position == len(long + end)
    pieces = [line for line in found if not line.whole]
    assert max(len(line.data) for line in pieces) <= 20
    assert b"".join(line.data for line in pieces) == long
    assert all(long.startswith(line.data, line.position) for line in pieces)
    assert [line.data for line in found if line.whole] == ([b"next"] if end else [])


def test_a_line_that_is_still_being_written_waits(tmp_path):
    with file_of(tmp_path / "a", b"one\ntw") as file:
        chunk = read_lines(file, start(file), size=64, max_line=20, at_end=False)
        assert ([line.data for line in chunk.lines], chunk.position) == ([b"one"], 4)
        position = moved(file, start(file), chunk)
        assert read_lines(file, position, size=64, max_line=20, at_end=False).lines == []
        grow(tmp_path / "a", b"o\r\n")
        assert read_lines(file, position, size=64, max_line=20, at_end=False).lines[0].data == b"two"


def test_a_file_is_known_by_its_inode_and_its_beginning(tmp_path):
    path = tmp_path / "a"
    with file_of(path, b"one\n") as file:
        begin = start(file)
        assert is_same(file, begin)
        position = moved(file, begin, read_lines(file, begin, size=64, max_line=20, at_end=False))
        grow(path, b"two\n")
        assert is_same(file, position)
        os.truncate(path, 0)
        assert not is_same(file, position)
        grow(path, b"eins\nzwei\n")  # cut and grown beyond what was read: only the beginning tells
        assert not is_same(file, position)
        assert not has_content(file, position)


def test_forerunners_are_the_old_file_and_what_came_after_it(tmp_path):
    path = tmp_path / "access.log"
    for age, (name, data) in enumerate(
        [("access.log.3", b"x\n"), ("access.log.2", b"old\n"), ("access.log.1", b"mid\n")]
    ):
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (age, age))
    (tmp_path / "access.log.0.gz").write_bytes(b"packed")
    with (tmp_path / "access.log.2").open("rb") as file:
        position = moved(file, start(file), read_lines(file, start(file), size=64, max_line=20, at_end=False))
    assert [each.name for each in forerunners(path, position)] == ["access.log.2", "access.log.1"]
    assert list(forerunners(path, FilePosition(1, 4, 4, 7))) == []


@pytest.mark.parametrize(
    ("old", "other", "path", "found"),
    [(9000, 8000, 8100, "access.log.1"), (9000, 8000, 8500, None), (9000, 9100, 8100, None), (9000, 8000, None, None)],
)
def test_times_that_cannot_be_true_leave_the_order_open(tmp_path, old, other, path, found):
    """The file at the path is the last one; for ten minutes a server may write to both."""
    with file_of(tmp_path / "access.log.2", b"old\n") as file:
        position = moved(file, start(file), read_lines(file, start(file), size=64, max_line=20, at_end=False))
    for name, age in (
        ("access.log.2", old),
        ("access.log.1", other),
        ("access.log.sha256", other),
        ("access.log", path),
    ):
        if age is not None:
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (age, age))
    known = unordered(tmp_path / "access.log", tmp_path / "access.log.2", position)
    assert (known and known.name) == found


@pytest.mark.parametrize(
    ("name", "rotated"),
    [
        *[(name, True) for name in (".1", ".12", "-20240501", ".20240501", ".2024-05-01", "-2024050112", "-20240501.1")],
        *[(name, True) for name in (".2024-05-01_12", ".2024-05-01_12-30-00", "-20240501T123000", ".1714521600")],
        *[(name, False) for name in (".1.bak", ".offset", ".pos", ".sha256", ".swp", ".1.swp", ".1.gz", ".end", "-1x", "2")],
    ],
)  # fmt: skip
def test_what_came_after_a_file_is_known_by_its_name(tmp_path, name, rotated):
    """A copy or a checksum beside the file was read as a part of the log."""
    path = tmp_path / "access.log"
    with file_of(tmp_path / "access.log.9", b"old\n") as file:
        position = moved(file, start(file), read_lines(file, start(file), size=64, max_line=20, at_end=False))
    os.utime(tmp_path / "access.log.9", (1, 1))
    (tmp_path / f"access.log{name}").write_bytes(b"foreign")
    expected = ["access.log.9", f"access.log{name}"][: 1 + rotated]
    assert [each.name for each in forerunners(path, position)] == expected


@pytest.mark.parametrize(("old", "expected"), [(".2", [".2", ".1"]), (".1", [".1"]), (".3", [".3", ".2", ".1"])])
def test_of_files_of_the_same_moment_the_number_tells(tmp_path, old, expected):
    """Times of whole seconds: what came after it was passed over."""
    for name in (".1", ".2", ".3"):
        (tmp_path / f"a.log{name}").write_bytes(name.encode() + b"\n")
        os.utime(tmp_path / f"a.log{name}", (1, 1))
    with (tmp_path / f"a.log{old}").open("rb") as file:
        position = moved(file, start(file), read_lines(file, start(file), size=64, max_line=20, at_end=False))
    assert [each.name.removeprefix("a.log") for each in forerunners(tmp_path / "a.log", position)] == expected


def test_the_lines_of_one_chunk_are_not_too_many_for_a_transaction(tmp_path):
    """A megabyte of empty lines were a million records: they took longer than a transaction may, at every try."""
    with file_of(tmp_path / "a", b"\n" * 100_000 + b"last") as file:
        at, found = start(file), []
        while (chunk := read_lines(file, at, size=1 << 20, max_line=20, at_end=True)).position > at.position:
            assert len(chunk.lines) <= 20_000
            at, found = moved(file, at, chunk), found + chunk.lines
    assert [line.position for line in found] == list(range(100_001))
    assert found[-1].data == b"last"


def test_the_file_itself_is_known_under_any_name(tmp_path):
    with file_of(tmp_path / "a.log", b"one\n") as file:
        position = moved(file, start(file), read_lines(file, start(file), size=64, max_line=20, at_end=False))
    renamed = (tmp_path / "a.log").rename(tmp_path / "a.log.old")
    assert list(forerunners(tmp_path / "a.log", position)) == [renamed]


def test_a_copy_of_a_file_that_was_read(tmp_path):
    path, rows = tmp_path / "a.log", b"a long header\n" * 100
    with file_of(tmp_path / "a.log.2", rows + b"read\n") as file:
        done = start(
            file, moved(file, start(file), read_lines(file, start(file), size=4000, max_line=99, at_end=False))
        )
    with file_of(tmp_path / "a.log.1", rows + b"the last\n") as file:
        since = start(file, done)
    for name, data, found in [
        ("a.log-20240501", rows + b"read\n", "a.log.2"),
        ("a.log-20240502", rows + b"the last\nand more\n", "a.log.1"),
        ("a.log-20240503", rows + b"another\n", None),
        ("a.log-20240504", b"the last\n", None),
    ]:
        (tmp_path / name).write_bytes(data)
        known = original(path, tmp_path / name, since)
        assert (known and known.name) == found
        (tmp_path / name).unlink()


@pytest.mark.parametrize(("size", "found"), [(2000, ["a.log.1"]), (500, [])])
def test_a_copy_counts_only_when_its_first_kilobyte_agrees(tmp_path, size, found):
    path = tmp_path / "a.log"
    with file_of(path, b"x" * (size - 1) + b"\n") as file:
        position = moved(file, start(file), read_lines(file, start(file), size=4000, max_line=3000, at_end=False))
    (tmp_path / "a.log.1").write_bytes(path.read_bytes() + b"more\n")
    assert [each.name for each in forerunners(path, position)] == found
