"""A job's plain name leads to the table of its current version: all names move in one step, and none too early."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from mainstem import embedded
from mainstem.client.catalog import read_catalog, with_cutover, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics
from mainstem.connect.sinks import delta_views
from mainstem.connect.sinks.delta_log import PartitionBooks, TableCommit
from mainstem.connect.sinks.delta_views import (
    View,
    Views,
    next_views,
    read_views,
    views_directory,
    wanted_views,
    write_views,
)
from tests.support.waiting import wait_until

ALL = r"^[^_].*"


def put(tables, topic, position):
    """A commit of the sink after which the table has its topic up to `position`."""
    commit = TableCommit(topic, {0: PartitionBooks(next=position)}, number=0)
    metadata = {"userMetadata": commit.metadata}
    rows = pa.table({"topic": [topic], "position": [position]})
    write_deltalake(
        str(tables / topic), rows, mode="append", commit_properties=CommitProperties(custom_metadata=metadata)
    )


def catalog_of(*jobs):
    def about(job, version):
        return {"output": job if version == "1" else f"{job}.v{version}"}

    return {f"job:{job}": {"versions": {v: about(job, v) for v in "12"}, "current": "1"} for job in jobs}


def topics_of(path):
    return DeltaTable(str(path)).to_pyarrow_table()["topic"].to_pylist()


def test_a_name_leads_to_the_table_of_the_current_version(tmp_path):
    tables, views = tmp_path / "tables", views_directory(tmp_path / "tables")
    catalog = catalog_of("sums", "tops") | {"job:gone": {"versions": {}, "current": ""}}
    for topic in ("sums", "sums.v2", "tops"):
        put(tables, topic, 5)
    catalog |= with_cutover(catalog, {"sums": "2"}, {"sums": {"sums.v2": {0: 5}}}, 1)
    write_views(tables, views, next_views(tables, {}, wanted_views(catalog, ALL)))
    assert (topics_of(views / "sums"), topics_of(views / "tops")) == (["sums.v2"], ["tops"])
    assert not views.readlink().is_absolute()  # a data directory may be moved
    assert wanted_views(catalog, "tops") == [View("tops", "tops")]


def test_all_topics_of_a_job_have_a_name():
    versions = {"1": {"output": "paid", "also": {"refunds": "refunds"}}}
    versions["2"] = {"output": "paid.v2", "also": {"refunds": "refunds.v2", "paid.state": "paid.state.v2"}}
    catalog = {"job:paid": {"versions": versions, "current": "1"}}
    assert wanted_views(catalog, ALL) == [View("paid", "paid"), View("refunds", "refunds")]
    catalog |= with_cutover(catalog, {"paid": "2"}, {"paid": {"refunds.v2": {0: 5}}}, 1)
    assert wanted_views(catalog, "refunds.*") == [View("refunds", "refunds.v2", {0: 5}, 1)]


def test_a_name_moves_once_its_table_has_what_the_version_had_reached(tmp_path):
    put(tmp_path, "sums", 9)
    present, view = {"sums": "sums"}, View("sums", "sums.v2", {0: 7}, 1)
    assert next_views(tmp_path, present, [view]) == present
    for position, table in [(6, "sums"), (7, "sums.v2")]:
        put(tmp_path, "sums.v2", position)
        assert next_views(tmp_path, present, [view]) == {"sums": table}
    assert next_views(tmp_path, present, [View("other", "gone")]) == {}


def test_names_of_one_cutover_move_together(tmp_path):
    for topic in ("a", "b", "c", "a.v2", "c.v2"):
        put(tmp_path, topic, 5)
    present = {"a": "a", "b": "b", "c": "c", "d": "a"}
    wanted = [View("a", "a.v2", {0: 5}, 1), View("b", "b.v2", {0: 5}, 1), View("c", "c.v2", {0: 5}, 2)]
    wanted.append(View("d", "d.v2", {0: 0}, 2))  # it has written nothing, and holds nobody up
    assert next_views(tmp_path, present, wanted) == {"a": "a", "b": "b", "c": "c.v2", "d": "a"}
    put(tmp_path, "b.v2", 5)
    assert next_views(tmp_path, present, wanted) == {"a": "a.v2", "b": "b.v2", "c": "c.v2", "d": "a"}


class Killed(BaseException):
    """Nothing of the process runs any more."""


CALLS = [(Path, "mkdir"), (Path, "symlink_to"), (Path, "rename"), (Path, "unlink"), (delta_views, "sync_directory")]


def dies_at(monkeypatch, number, calls):
    """The process ends before the call with this number."""
    for place, name in CALLS:
        real = getattr(place, name)

        def counted(*given, real=real, name=name, **named):
            calls.append(name)
            if len(calls) == number:
                raise Killed
            return real(*given, **named)

        monkeypatch.setattr(place, name, counted)


def test_whatever_is_killed_between_two_steps_leaves_views_that_work(tmp_path, monkeypatch):
    tables, views = tmp_path / "tables", tmp_path / "views"
    before, after = {"a": "a", "b": "b"}, {"a": "a.v2", "b": "b.v2"}
    for number in range(1, 100):
        write_views(tables, views, before)
        calls = []
        with monkeypatch.context() as patch:
            dies_at(patch, number, calls)
            try:
                write_views(tables, views, after)
            except Killed:
                pass
            else:
                break
        assert read_views(views) in (before, after), number
        write_views(tables, views, after)
        assert read_views(views) == after
        # Nothing is left but what is read, and what was read before that.
        assert len(list(tmp_path.glob(".views*"))) <= 2
    assert number > 6


def test_views_of_another_lakehouse_beside_them_are_left_alone(tmp_path):
    other = tmp_path / "views-b-views"
    for number in range(3):
        write_views(tmp_path / "views-b", other, {"b": f"b.v{number}"})
    for number in range(3):
        write_views(tmp_path / "tables", tmp_path / "views", {"a": f"a.v{number}"})
    assert (read_views(other), read_views(tmp_path / "views")) == ({"b": "b.v2"}, {"a": "a.v2"})


def test_what_is_none_of_ours_is_not_replaced(tmp_path):
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "mine").touch()
    (tmp_path / ".views-mine").mkdir()
    with pytest.raises(OSError, match="views"):
        write_views(tmp_path / "tables", tmp_path / "views", {"a": "a"})
    assert read_views(tmp_path / "views") == {}
    assert (tmp_path / "views" / "mine").exists()
    assert (tmp_path / ".views-mine").exists()


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"))))
def test_readers_see_what_was_written_last(tmp_path_factory, several):
    place = tmp_path_factory.mktemp("views")
    for links in several:
        write_views(place / "tables", place / "views", links)
        assert read_views(place / "views") == links


def test_the_views_of_tables_elsewhere_are_beside_them():
    assert views_directory(Path("/d/tables")) == Path("/d/views")
    assert views_directory(Path("/p/lake")) == Path("/p/lake-views")


def test_views_follow_the_catalog(tmp_path, monkeypatch):
    monkeypatch.setattr(delta_views, "LOOK_EVERY_SECONDS", 0.01)
    tables = tmp_path / "tables"
    read = []

    def reading(connection):
        read.append(1)
        return read_catalog(connection)

    monkeypatch.setattr(delta_views, "read_catalog", reading)
    with embedded() as log:
        connection = Connection(log.bootstrap)
        views = Views(connection, tables, ALL, name="lake")
        views.look()  # nothing has ever run on this log
        ensure_internal_topics(connection)
        write_catalog(connection, catalog_of("sums"))
        put(tables, "sums", 5)
        (tmp_path / "views").mkdir()
        (tmp_path / "views" / "mine").touch()
        views.start()
        wait_until(lambda: views.states, "that somebody is in the way")
        assert (views.states[0].name, views.states[0].state) == ("sink lake: views", "waiting")
        (tmp_path / "views" / "mine").unlink()
        (tmp_path / "views").rmdir()
        wait_until(lambda: read_views(tmp_path / "views") == {"sums": "sums"}, "a view", seconds=20)
        wait_until(lambda: not views.states, "that it is told to be well")
        put(tables, "sums.v2", 5)
        write_catalog(connection, with_cutover(read_catalog(connection), {"sums": "2"}, {}, 1))
        wait_until(lambda: read_views(tmp_path / "views") == {"sums": "sums.v2"}, "that it moves", seconds=20)
        views.stop()
        write_catalog(connection, with_cutover(read_catalog(connection), {"sums": "1"}, {}, 2))
        views.look()  # of an answer of the log that comes too late
        assert read_views(tmp_path / "views") == {"sums": "sums.v2"}
        assert len(read) == 3  # where the catalog has not changed it is not read
        again = Views(connection, tables, ALL, name="lake")
        again.look()
        assert read_views(tmp_path / "views") == {"sums": "sums"}
