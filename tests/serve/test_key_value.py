import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.client.progress import Read
from mainstem.serve import Applied, BadQuery, Change, IndexDamaged, NotApplied, NotKept, OtherShape
from mainstem.serve.errors import IndexInUse, UnfitChanges
from mainstem.serve.key_value import Found, KeyValueIndex
from tests.serve.support import TOPIC, applied_after, before, copy, cuts, fold_keys, histories, rows_of, tear
from tests.support.properties import examples

COLUMNS = ("a", "b")


@contextmanager
def opened(path: Path, *, columns=COLUMNS, versions=True) -> Iterator[KeyValueIndex]:
    index = KeyValueIndex.open(path, key_columns=columns, versions=versions)
    try:
        yield index
    finally:
        index.close()


def fill(path: Path, changes, **options) -> None:
    with opened(path, **options) as index:
        index.apply(changes, applied_after(changes))


def all_rows(index: KeyValueIndex, at=None, limit=3) -> list[Found]:
    rows, after = [], None
    while True:
        page = index.scan((), after, limit, at)
        rows += page.rows
        after = page.after
        if after is None:
            return rows


def model(changes) -> list[Found]:
    return [Found(*found) for _, found in sorted(fold_keys(changes, COLUMNS).items())]


@settings(max_examples=examples(40))
@given(st.data(), st.booleans())
def test_the_rows_are_the_fold_of_the_changes(data, versions):
    """Any batches, opened again at random: a row per key, in the order of the keys."""
    changes = data.draw(histories())
    with TemporaryDirectory() as directory:
        done: list[Change] = []
        index = KeyValueIndex.open(Path(directory), key_columns=COLUMNS, versions=versions)
        for batch in data.draw(cuts(changes)):
            done += batch
            index.apply(batch, applied_after(done))
            if data.draw(st.integers(0, 3)) == 0:
                index.close()
                index = KeyValueIndex.open(Path(directory), key_columns=COLUMNS, versions=versions)
            assert index.applied == applied_after(done)
            assert all_rows(index) == model(done)
        for key, found in fold_keys(done, COLUMNS).items():
            assert index.get(key) == Found(*found)
        assert index.get((9, "")) is None
        index.close()


@settings(max_examples=examples(40))
@given(st.data())
def test_rows_as_of_any_position_are_the_fold_of_what_the_log_had(data):
    changes = data.draw(histories(apart=True))
    ends = {change.partition: change.offset + 1 for change in changes}
    with TemporaryDirectory() as directory, opened(Path(directory)) as index:
        done: list[Change] = []
        for batch in data.draw(cuts(changes)):
            done += batch
            index.apply(batch, applied_after(done))
        for _ in range(5):
            at = {partition: data.draw(st.integers(0, end)) for partition, end in ends.items()}
            assert all_rows(index, at) == model(before(changes, at))
            rows = fold_keys(before(changes, at), COLUMNS)
            for key in fold_keys(changes, COLUMNS):
                assert index.get(key, at) == (Found(*rows[key]) if key in rows else None)


def test_a_key_that_moved_to_a_partition_that_was_added(tmp_path):
    """The later one counts, and only what the log had in each partition."""
    changes = [Change(TOPIC, 0, 5, "1", {"a": 1, "b": "old"}), Change(TOPIC, 1, 0, "1", {"a": 1, "b": "new"})]
    with opened(tmp_path, columns=["a"]) as index:
        index.apply(changes, applied_after(changes))
        new, old = Found({"a": 1, "b": "new"}, 1, 0), Found({"a": 1, "b": "old"}, 0, 5)
        assert index.get((1,)) == index.get((1,), {0: 6, 1: 1}) == index.get((1,), {1: 1}) == new
        assert index.get((1,), {0: 6}) == index.get((1,), {0: 6, 1: 0}) == old
        assert index.get((1,), {0: 5}) is None
        assert index.scan((), at={0: 6}).rows == [old]


def test_pages_of_the_leading_columns(tmp_path):
    rows = [{"a": a, "b": b} for a in range(3) for b in ("", "a", "a\0", "b")]
    changes = [Change(TOPIC, 0, number, str(number), row) for number, row in enumerate(rows)]
    fill(tmp_path, changes)
    with opened(tmp_path) as index:
        for at in (None, {0: len(rows)}):
            first = index.scan((1,), limit=3, at=at)
            assert [found.row for found in first.rows] == rows[4:7]
            last = index.scan((1,), first.after, limit=3, at=at)
            assert ([found.row for found in last.rows], last.after) == (rows[7:8], None)
            assert index.scan((1,), limit=4, at=at).after is None
            assert [found.row for found in index.scan((2, "a"), at=at).rows] == [rows[9]]
        with pytest.raises(BadQuery, match="another prefix"):
            index.scan((2,), first.after)
        with pytest.raises(BadQuery, match="expected 2 values"):
            index.get((1,))
        with pytest.raises(BadQuery, match="up to 2 values"):
            index.scan((1, "", 3))
        with pytest.raises(BadQuery, match="1 or more"):
            index.scan(limit=0)


def test_a_page_of_large_rows_ends_early_and_the_next_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.serve.key_value.MOST_BYTES", 1000)
    sizes = [300, 300, 300, 5000, 300]
    changes = [Change(TOPIC, 0, n, str(n), {"a": n, "b": "", "c": "x" * size}) for n, size in enumerate(sizes)]
    fill(tmp_path, changes)
    with opened(tmp_path) as index:
        for at in (None, {0: len(sizes)}):
            pages, after = [], None
            while not pages or after is not None:
                page = index.scan(after=after, at=at)
                pages.append([found.row["a"] for found in page.rows])
                after = page.after
            assert pages == [[0, 1, 2], [3], [4]]


def test_a_page_that_takes_too_long_ends_where_it_is_and_the_next_goes_on(tmp_path):
    """One row was asked for as of an old position, and every key that came later was looked at before the answer."""
    changes = [Change(TOPIC, 0, n, str(n), {"a": n % 3, "b": f"{n:02}"}) for n in range(12)]
    fill(tmp_path, changes)
    with opened(tmp_path) as index:
        for at, expected in ((None, 12), ({0: 12}, 12), ({0: 5}, 5), ({0: 1}, 1)):
            rows, pages, after = [], 0, None
            while not pages or after is not None:
                page = index.scan(after=after, limit=100, at=at, seconds=0)
                rows, after, pages = rows + page.rows, page.after, pages + 1
                assert len(page.rows) <= 1
            assert rows == index.scan(limit=100, at=at, seconds=60).rows
            assert (len(rows), pages) == (expected, 12)


def test_before_the_first_record_nothing_is_looked_at(tmp_path):
    changes = [Change(TOPIC, 0, n, str(n), {"a": n, "b": ""}) for n in range(10, 14)]
    with opened(tmp_path) as index:
        index.apply(changes, Applied("log", {}, {TOPIC: {0: Read(start=10, end=14), 1: Read(start=0, end=0)}}))
        for at in ({}, {0: 10}, {0: 10, 1: 0}, {1: 0}):
            page = index.scan(limit=1, at=at, seconds=0)
            assert (page.rows, page.after) == ([], None)
        assert len(index.scan(limit=2, at={0: 11}).rows) == 1


def test_positions_that_were_not_kept_or_not_applied_are_refused(tmp_path):
    change = Change(TOPIC, 2, 17, "1", {"a": 1, "b": ""})
    applied = Applied("log", {}, {TOPIC: {2: Read(start=10, end=18)}})
    with opened(tmp_path) as index:
        with pytest.raises(NotApplied):
            index.get((1, ""), {2: 1})
        index.apply([change], applied)
        with pytest.raises(NotKept, match="partition 2: rows are kept as of offset 10 and later, asked for 9"):
            index.get((1, ""), {2: 9})
        with pytest.raises(NotApplied, match="partition 2: asked for offset 19, applied are those before 18"):
            index.scan((), at={2: 19})
        with pytest.raises(NotApplied):
            index.get((1, ""), {3: 1})
        assert index.get((1, ""), {2: 10, 3: 0}) is None
        assert index.get((1, ""), {2: 18}) == Found({"a": 1, "b": ""}, 2, 17)


def test_without_versions_there_is_only_now(tmp_path):
    with opened(tmp_path, versions=False) as index, pytest.raises(BadQuery, match="no versions"):
        index.get((1, ""), {0: 0})


def test_a_batch_with_a_key_that_cannot_be_one_changes_nothing(tmp_path):
    good, bad = Change(TOPIC, 0, 0, "1", {"a": 1, "b": ""}), Change(TOPIC, 0, 1, "2", {"a": [1], "b": ""})
    nothing, large = Change(TOPIC, 0, 2, "3", {"c": 1}), Change(TOPIC, 0, 3, "4", {"a": 1, "c": [10**400]})
    with opened(tmp_path) as index:
        with pytest.raises(UnfitChanges, match="key: expected") as refused:
            index.apply([good, bad, nothing, large], applied_after([good, bad]))
        assert list(refused.value.reasons) == [1, 2, 3]
        assert (index.applied, index.get((1, ""))) == (None, None)
        index.apply([good], applied_after([good]))
        assert index.get((1, "")) is not None


def test_it_is_of_one_topic(tmp_path):
    with opened(tmp_path) as index, pytest.raises(ValueError, match="one topic"):
        index.apply([], Applied("log", {}, {"t": {}, "u": {}}))


def test_another_shape_is_refused_and_nothing_is_lost(tmp_path):
    changes = [Change(TOPIC, 0, 0, "1", {"a": 1, "b": ""})]
    fill(tmp_path, changes)
    for options in ({"columns": ("b", "a")}, {"versions": False}):
        with pytest.raises(OtherShape, match="expected format 2 key-value"), opened(tmp_path, **options):
            pass
    with opened(tmp_path) as index:
        with pytest.raises(IndexInUse), opened(tmp_path):
            pass
        assert all_rows(index) == model(changes)


def filled(path: Path) -> None:
    """As after a kill: with tables that were flushed, and a log that was not."""
    changes, live = rows_of(3000), path.with_name("live")
    fill(live, changes[:1000], columns=["id"])
    with opened(live, columns=["id"]) as index:
        for start in range(1000, 3000, 100):
            index.apply(changes[start : start + 100], applied_after(changes[: start + 100]))
            if start == 2000:
                index._flush()  # not more often: compaction, beside this, would remove tables while they are copied
        copy(live, path)


@pytest.mark.parametrize("how", ["missing", "cut in half", "empty"])
def test_a_torn_directory_is_refused_or_as_it_once_was(tmp_path, how):
    """Whatever file is torn: an error, or the rows of an earlier position, which the log leads on from."""
    filled(tmp_path / "whole")
    files = [path.relative_to(tmp_path / "whole") for path in sorted((tmp_path / "whole").rglob("*")) if path.is_file()]
    needless = ("LOG", "LOCK", "lock", "IDENTITY", "OPTIONS", "rocksdict-config.json")
    refused = 0
    for number, name in enumerate(files):
        torn = copy(tmp_path / "whole", tmp_path / str(number))
        tear(torn / name, how)
        try:
            with opened(torn, columns=["id"]) as index:
                assert index.applied is not None
                end = index.applied.position[TOPIC][0]
                assert [found.row["id"] for found in all_rows(index, limit=5000)] == list(range(end))
                assert end == 3000 or not name.name.startswith(needless), name
        except IndexDamaged:
            refused += 1
    assert refused >= 3


def test_a_database_that_has_lost_its_middle_is_refused(tmp_path):
    """RocksDB's list of tables is cut where a log was still to be read, which is gone: the next log would be laid over
    what was before it, and say that all is applied.
    """
    changes = rows_of(30)
    with opened(tmp_path / "live", columns=["id"]) as index:
        index.apply(changes[:10], applied_after(changes[:10]))
        index._flush()
        (manifest,) = (tmp_path / "live").rglob("MANIFEST-*")
        size = manifest.stat().st_size
        index.apply(changes[10:20], applied_after(changes[:20]))
        index._flush()
        index.apply(changes[20:], applied_after(changes))
        copy(tmp_path / "live", tmp_path / "killed")
    os.truncate(tmp_path / "killed" / manifest.relative_to(tmp_path / "live"), size)
    with pytest.raises(IndexDamaged, match="commit 3 follows on 2, which is lost"):
        KeyValueIndex.open(tmp_path / "killed", key_columns=["id"], versions=True)


def test_a_table_whose_bytes_were_changed_is_refused_when_it_is_read(tmp_path):
    filled(tmp_path / "index")
    for table in (tmp_path / "index").rglob("*.sst"):
        data = bytearray(table.read_bytes())
        data[len(data) // 3] ^= 1
        table.write_bytes(data)
    with pytest.raises(IndexDamaged), opened(tmp_path / "index", columns=["id"]) as index:
        all_rows(index)


def test_a_snapshot_is_an_index_of_its_own(tmp_path):
    changes = rows_of(10)
    with opened(tmp_path / "live", columns=["id"]) as index:
        index.apply(changes[:6], applied_after(changes[:6]))
        index.snapshot(tmp_path / "copy")
        index.apply(changes[6:], applied_after(changes))
        assert len(all_rows(index)) == 10
    with opened(tmp_path / "copy", columns=["id"]) as index:
        assert index.applied == applied_after(changes[:6])
        assert [found.row for found in all_rows(index)] == [change.row for change in changes[:6]]
        index.apply(changes[6:8], applied_after(changes[:8]))
        assert len(all_rows(index)) == 8
