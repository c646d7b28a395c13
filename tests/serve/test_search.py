from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.core import UserError
from mainstem.serve import BadQuery, Change, IndexDamaged, OtherShape
from mainstem.serve.errors import UnfitChanges
from mainstem.serve.search import DEEPEST, MOST_WORDS, Hit, SearchIndex, fields_of
from tests.serve.support import TOPIC, applied_after, copy, cuts, flight, fold_rows, histories, rows_of, tear
from tests.support.properties import examples

FIELDS = {
    "tailnum": "text",
    "carrier": "keyword",
    "flight": "integer",
    "distance": "float",
    "late": "boolean",
    "time_hour": "time",
}


@contextmanager
def opened(path: Path, fields=FIELDS) -> Iterator[SearchIndex]:
    index = SearchIndex.open(path, fields)
    try:
        yield index
    finally:
        index.close()


def fill(index: SearchIndex, changes) -> None:
    index.apply(changes, applied_after(changes))
    index.commit()


def row(**values) -> Change:
    return Change(TOPIC, 0, 7, "1", values)


def everything(index: SearchIndex) -> list[tuple]:
    hits = index.search("*", limit=1000)
    assert hits.total == len(hits.hits)
    return sorted((hit.topic, hit.partition, hit.offset, repr(hit.row)) for hit in hits.hits)


def model(changes) -> list[tuple]:
    return sorted((each.topic, each.partition, each.offset, repr(each.row)) for each in fold_rows(changes))


@settings(max_examples=examples(12))
@given(st.data())
def test_the_documents_are_the_fold_of_what_was_committed(data):
    """Any batches, committed and opened again at random; what is pending is not seen, and gone once it is closed."""
    changes = data.draw(histories(topics=("t", "u")))
    fields = {"a": "integer", "b": "text"}
    with TemporaryDirectory() as directory:
        index = SearchIndex.open(Path(directory), fields)
        done: list[Change] = []
        pending: list[Change] = []
        for batch in data.draw(cuts(changes)):
            pending += batch
            index.apply(batch, applied_after(done + pending))
            assert index.pending
            if data.draw(st.integers(0, 2)):
                index.commit()
                done, pending = done + pending, []
            if data.draw(st.integers(0, 3)) == 0:
                index.close()
                index = SearchIndex.open(Path(directory), fields)
                index.apply(pending, applied_after(done + pending))
            assert index.applied == (applied_after(done) if done or index.applied else None)
            assert everything(index) == model(done)
        index.close()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("N14228", True),
        ("n14228", True),
        ("tailnum:N14228", True),
        ("UA", False),  # of columns of text only
        ("carrier:UA", True),
        ("carrier:ua", False),
        ('carrier:"UA"', True),
        ("flight:1545", True),
        ("flight:[1500 TO 1600]", True),
        ("flight:>1545", False),
        ("distance:>=1400.5", True),
        ("late:true", True),
        ("time_hour:[2013-01-01T00:00:00Z TO 2013-01-01T12:00:00Z]", True),
        ("N14228 AND NOT carrier:UA", False),
        ("__id:applied", False),
        ("", False),
    ],
)
def test_what_a_query_finds(tmp_path, query, found):
    values = {"tailnum": "a plane, N14228", "carrier": "UA", "flight": 1545, "distance": 1400.5, "late": True}
    made = row(**values, time_hour=datetime(2013, 1, 1, 5, tzinfo=UTC))
    with opened(tmp_path) as index:
        fill(index, [made])
        hits = index.search(query)
        assert hits.total == len(hits.hits) == found
        if found:
            assert hits.hits == [Hit(made.row, TOPIC, 0, 7, hits.hits[0].score)]
            assert hits.hits[0].score > 0


def test_without_a_column_of_text_words_are_looked_for_in_the_others(tmp_path):
    with opened(tmp_path, {"carrier": "keyword", "flight": "integer"}) as index:
        fill(index, [row(carrier="UA", flight=5)])
        assert index.search("UA").total == 1


def test_the_best_come_first_and_pages_follow(tmp_path):
    changes = [Change(TOPIC, 0, n, str(n), {"tailnum": "plane " * (n + 1) + "x " * (9 - n)}) for n in range(10)]
    with opened(tmp_path) as index:
        fill(index, changes)
        best = index.search("plane", limit=10).hits
        assert [hit.offset for hit in best] == list(range(9, -1, -1))
        assert [hit.score for hit in best] == sorted((hit.score for hit in best), reverse=True)
        page = index.search("plane", limit=3, offset=3)
        assert (page.total, page.hits) == (10, best[3:6])


@pytest.mark.parametrize("query", ["nosuch:x", "carrier:(", "flight:x", "tailnum:/a.*/", '"', "-word", "flight:5*"])
def test_a_query_that_is_none_says_why_in_one_line(tmp_path, query):
    with opened(tmp_path) as index:
        fill(index, [row(tailnum="x")])
        with pytest.raises(BadQuery, match=r"^query: .+$"):
            index.search(query)


@pytest.mark.parametrize(
    "query",
    [
        "(" * 60_000,  # the parser ends the process
        "NOT " * 15_000 + "x",  # takes minutes
        "(" * (DEEPEST + 1) + "x" + ")" * (DEEPEST + 1),
        "'\"' " + "(" * (DEEPEST + 1),  # the engine knows other quotes, too
        "x" * (MOST_WORDS + 1),
        "é" * (MOST_WORDS // 2 + 1),
    ],
)
def test_a_query_that_is_too_long_or_too_deep_is_not_read(tmp_path, query):
    with opened(tmp_path) as index:
        fill(index, [row(tailnum="one")])
        with pytest.raises(BadQuery, match=f"expected up to ({MOST_WORDS} bytes|{DEEPEST} parentheses)"):
            index.search(query)


@pytest.mark.parametrize(
    "query",
    [
        "(" * DEEPEST + "one" + ")" * DEEPEST,
        f'one OR "{"(" * DEEPEST}"',
        "one OR " * 280 + "x",
        "one AND (" * DEEPEST + "one" + ")" * DEEPEST,
        "one* " * 400,
    ],
)
def test_a_query_as_long_and_deep_as_may_be_is_answered(tmp_path, query):
    with opened(tmp_path) as index:
        fill(index, [row(tailnum="one")])
        assert index.search(query).total <= 1


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (1, -1), (10_001, 0), (10, 9_991)])
def test_more_than_can_be_read_is_refused(tmp_path, limit, offset):
    with opened(tmp_path) as index, pytest.raises(BadQuery, match="limit"):
        index.search("x", limit=limit, offset=offset)


def test_an_answer_of_large_rows_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.serve.search.MOST_BYTES", 1000)
    with opened(tmp_path) as index:
        fill(index, [Change(TOPIC, 0, n, str(n), {"tailnum": "one", "x": "x" * 400}) for n in range(5)])
        found = [index.search("one", offset=offset) for offset in (0, 2, 4)]
        assert [(len(each.hits), each.cut, each.total) for each in found] == [(2, True, 5), (2, True, 5), (1, False, 5)]


def test_values_that_do_not_fit_their_field_are_kept_and_not_found(tmp_path):
    """Also what is in lists and maps, and texts that are none in UTF-8."""
    odd = {"tailnum": ["one", {"x": "two"}, 3, True, b"\0", "\ud800 four"], "carrier": Decimal("1.50")}
    odd |= {"flight": 2**70, "distance": float("nan"), "late": 1, "time_hour": datetime(1, 1, 1)}
    changes = [Change(TOPIC, 0, 1, "1", odd | {"tailnum": odd["tailnum"][:5]})]
    changes += [Change(TOPIC, 0, 2, "2", {"time_hour": date(2013, 1, 1), "distance": Decimal("0.5"), "flight": None})]
    with opened(tmp_path) as index:
        fill(index, changes)
        for query, total in [("one", 1), ("two", 1), ("3", 1), ("true", 1), ('carrier:"1.50"', 1), ("distance:0.5", 1)]:
            assert index.search(query).total == total, query
        assert index.search("time_hour:[2012-01-01T00:00:00Z TO 2014-01-01T00:00:00Z]").total == 1
        assert index.search("*").total == 2


def test_a_row_that_cannot_be_kept_is_told_and_what_is_pending_stays(tmp_path):
    deep: list = []
    for _ in range(900):
        deep = [deep]
    with opened(tmp_path) as index:
        index.apply([row(tailnum="one")], applied_after([row()]))
        unfit = [Change(TOPIC, 0, 8, "2", {"seats": 10**400}), Change(TOPIC, 0, 9, "3", {"x": deep})]
        with pytest.raises(UnfitChanges) as refused:
            index.apply([Change(TOPIC, 0, 8, "2", {}), *unfit], applied_after(unfit))
        assert list(refused.value.reasons) == [1, 2]
        assert index.pending
        index.commit()
        assert index.search("*").total == 1


def test_an_error_takes_back_all_that_is_pending(tmp_path, monkeypatch):
    with opened(tmp_path) as index:
        fill(index, [row(tailnum="one")])
        index.apply([row(tailnum="two")], applied_after([row()]))
        with pytest.raises(TypeError):
            index.apply([Change(TOPIC, 0, 8, "1", {"tailnum": object()})], applied_after([row()]))
        assert index.pending  # nothing was added yet

        def refuse(*_):
            raise OSError(28, "No space left on device")

        writer = index._writer

        class Full:
            delete_documents_by_term = refuse
            rollback = writer.rollback

        index._writer = Full()
        with pytest.raises(Exception, match="No space left"):
            index.apply([row(tailnum="three")], applied_after([row()]))
        index._writer = writer
        assert not index.pending
        index.commit()
        assert [hit.row for hit in index.search("*").hits] == [{"tailnum": "one"}]


def test_other_fields_need_an_index_of_their_own(tmp_path):
    with opened(tmp_path) as index:
        fill(index, [row(tailnum="x")])
    with pytest.raises(OtherShape, match="expected format 2 search"), opened(tmp_path, FIELDS | {"dest": "text"}):
        pass
    with opened(tmp_path) as index:
        assert index.search("x").total == 1


@pytest.mark.parametrize("fields", [{}, {"a": "number"}, {"__id": "text"}, {"-a": "text"}])
def test_fields_that_cannot_be_are_refused(tmp_path, fields):
    with pytest.raises(UserError, match="search: "):
        SearchIndex.open(tmp_path, fields)


def killed(path: Path) -> None:
    """As after a kill, with segments of several commits."""
    live = path.with_name("live")
    changes = rows_of(300)
    with opened(live) as index:
        for start in (0, 100, 200):
            fill(index, changes[start : start + 100])
        index.snapshot(path)


def test_a_commit_that_was_cut_short_does_not_stop_the_next(tmp_path):
    """The file of what is deleted of a segment was there, under the number that the next commit has."""
    with opened(tmp_path) as index:
        fill(index, rows_of(20))
        fill(index, [Change(TOPIC, 0, 21, "3", None)])
        (deleted,) = tmp_path.rglob("*.del")
        content = deleted.read_bytes()
    segment, number, _ = deleted.name.split(".")
    for following in range(int(number) + 1, int(number) + 9):
        deleted.with_name(f"{segment}.{following}.del").write_bytes(content)
    with opened(tmp_path) as index:
        assert index.search("*").total == 19
        fill(index, [Change(TOPIC, 0, 22, "4", None)])
        assert index.search("*").total == 18


def test_the_first_change_after_a_start_replaces_its_row_while_segments_are_merged(tmp_path):
    """Eight segments are merged when the ninth is written, before it is committed. The engine took the first deletion
    after a start for a part of the last commit, and did not do it in the segment that had deletions of that one: three
    times in four the old row was found beside the new one.
    """
    with opened(tmp_path / "live") as index:
        for number in range(8):
            fill(index, [Change(TOPIC, 0, 3 * number + n, f"{number} {n}", {"flight": number}) for n in range(3)])
        index.snapshot(tmp_path / "0")  # the merge that has just begun is not in it
    for again in range(8):  # it depends on the segments' random names
        copy(tmp_path / str(again), tmp_path / str(again + 1))
        with opened(tmp_path / str(again)) as index:
            fill(index, [Change(TOPIC, 0, 99, "6 0", {"flight": 99})])
        with opened(tmp_path / str(again)) as index:
            assert index.search("*").total == 24
            assert index.search("flight:6").total == 2


@pytest.mark.parametrize("how", ["missing", "cut in half", "empty"])
def test_a_torn_directory_is_refused(tmp_path, how):
    killed(tmp_path / "whole")
    files = [path.relative_to(tmp_path / "whole") for path in sorted((tmp_path / "whole").rglob("*")) if path.is_file()]
    assert len(files) > 15
    for number, name in enumerate(files):
        torn = copy(tmp_path / "whole", tmp_path / str(number))
        tear(torn / name, how)
        try:
            with opened(torn) as index:
                assert name.name == ".managed.json"  # which files to remove one day
                assert len(everything(index)) == 300
        except IndexDamaged:
            pass


def test_a_snapshot_is_an_index_of_its_own(tmp_path):
    changes = rows_of(60)
    with opened(tmp_path / "live") as index:
        fill(index, changes[:40])
        index.apply(changes[40:], applied_after(changes))
        index.snapshot(tmp_path / "copy")
        index.commit()
        assert index.search("*").total == 60
    with opened(tmp_path / "copy") as index:
        assert index.applied == applied_after(changes[:40])
        assert everything(index) == model(changes[:40])
        fill(index, [*changes[40:50], Change(TOPIC, 0, 99, "3", None)])
        assert index.search("*").total == 49


def test_a_flight_is_found_by_what_was_changed(tmp_path):
    with opened(tmp_path) as index:
        fill(index, [Change(TOPIC, 0, 1, "5", flight(5))])
        fill(index, [Change(TOPIC, 0, 2, "5", flight(5) | {"tailnum": "changed"})])
        assert index.search("N5").total == 0
        assert index.search("changed").total == 1


def test_the_fields_that_an_index_has_are_those_of_this_format_alone(tmp_path):
    assert fields_of(tmp_path) is None
    SearchIndex.open(tmp_path, {"a": "text"}).close()
    assert fields_of(tmp_path) == {"a": "text"}
    for wrong in (b"{", b'{"format": 1, "kind": "search", "shape": {"fields": {"a": "text"}}}', b'{"shape": 5}'):
        (tmp_path / "index.json").write_bytes(wrong)
        assert fields_of(tmp_path) is None
