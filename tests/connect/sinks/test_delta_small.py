"""Small batches committed without Spark's writer: what they make of tables, and what they leave to Spark."""

import itertools
import shutil
from datetime import UTC, datetime

import deltalake
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from deltalake.transaction import AddAction
from pyarrow import parquet
from structlog.testing import capture_logs

from mainstem.client.catalog import write_catalog
from mainstem.client.topics import ensure_topic
from mainstem.connect.sinks import delta_small
from mainstem.connect.sinks.delta_log import Found, TableCommit, TableGone, is_table, last_commit
from mainstem.connect.sinks.delta_rows import Columns, NotPlain, typed_small
from mainstem.connect.sinks.delta_small import commit_books, commit_small
from mainstem.connect.sinks.delta_spark import SparkWriter
from mainstem.registry import avro
from tests.support.lakehouse import ALL, AT, CHANGE, KINDS, NUMBER, change, collected, number, plane, record


def said(number):
    return TableCommit("t", {}, number=number)


def test_a_stream_is_appended_with_our_metadata(tmp_path):
    for n in range(2):
        rows = typed_small(collected((b"k", number(n))), {1: Columns(NUMBER)}, merged=False)
        commit_small(tmp_path / "t", rows, said(n + 1), merged=False)
    table = DeltaTable(str(tmp_path / "t"))
    assert sorted(table.to_pyarrow_table()["number"].to_pylist()) == [0, 1]
    assert [each["userMetadata"] for each in table.history()] == [said(2).metadata, said(1).metadata]
    wider = typed_small(
        collected((b"k", avro.encode(1, ALL, {n: v for n, (_, v) in KINDS.items()}))), {1: Columns(ALL)}, merged=False
    )
    with pytest.raises(NotPlain, match="other columns"):
        commit_small(tmp_path / "t", wider, said(3), merged=False)
    assert DeltaTable(str(tmp_path / "t")).version() == 1


def test_a_changelog_is_merged_by_its_key(tmp_path):
    """Also with tombstones only, whose columns are not known, and where a merge changes nothing."""
    numbers = itertools.count(1)

    def send(*sent):
        rows = typed_small(collected(*sent), {1: Columns(CHANGE)} if any(v for _, v in sent) else {}, merged=True)
        commit_small(tmp_path / "t", rows, said(next(numbers)), merged=True)
        table = DeltaTable(str(tmp_path / "t"))
        assert table.history(1)[0]["userMetadata"] == said(table.version() + 1).metadata
        return sorted((row["_key"], row["seats"]) for row in table.to_pyarrow_table().to_pylist())

    send((b"a", change("c", 1)), (b"b", change("c", 2)), (b"gone", change("d")))
    changes = (b"a", change("u", 3)), (b"b", change("d")), (b"c", change("c", 4)), (b"never", change("d"))
    assert send(*changes) == [("a", 3), ("c", 4)]
    assert send((b"never", change("d"))) == [("a", 3), ("c", 4)]
    assert send((b"a", None), (b"never", None)) == [("c", 4)]
    assert send((b"a", None)) == [("c", 4)]


def test_rows_without_columns_are_no_tombstones(tmp_path):
    """A set of keys: of its schema there is no column."""
    keys = record()
    for turn, pair in ((1, b"ab"), (2, b"cd")):
        rows = collected(*((bytes([key]), avro.encode(1, keys, {})) for key in pair))
        typed = typed_small(rows, {1: Columns(keys)}, merged=True)
        commit_small(tmp_path / "t", typed, said(turn), merged=True)
    assert sorted(DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["_key"].to_pylist()) == ["a", "b", "c", "d"]


def test_a_table_whose_rows_are_all_deleted_is_empty(tmp_path):
    rows = typed_small(collected((b"a", change("d"))), {1: Columns(CHANGE)}, merged=True)
    commit_small(tmp_path / "t", rows, said(1), merged=True)
    table = DeltaTable(str(tmp_path / "t"))
    assert table.history()[0]["userMetadata"] == said(1).metadata
    assert "seats" in table.to_pyarrow_table().column_names
    assert not table.to_pyarrow_table().num_rows


def test_a_large_table_is_merged_by_spark(tmp_path, monkeypatch):
    """delta-rs holds all of it in memory."""
    monkeypatch.setattr(delta_small, "MERGED_BYTES", 1000)
    rows = typed_small(collected((b"a", change("c", 1))), {1: Columns(CHANGE)}, merged=True)
    commit_small(tmp_path / "t", rows, said(1), merged=True)
    with pytest.raises(NotPlain, match="large"):
        commit_small(tmp_path / "t", rows, said(2), merged=True)


def test_times_that_would_be_others_are_left_to_spark(tmp_path):
    """Delta-rs read a time of 96 bits, as Spark writes unless told otherwise, as nanoseconds of 64: 9999 was 1816."""
    schema = record(("until", {"type": "long", "logicalType": "timestamp-micros"}))
    rows = [
        typed_small(collected((key, avro.encode(1, schema, {"until": at}))), {1: Columns(schema)}, merged=True)
        for key, at in ((b"a", datetime(9999, 12, 31, tzinfo=UTC)), (b"b", AT))
    ]
    table = tmp_path / "t"
    commit_small(table, rows[1], said(1), merged=True)
    parquet.write_table(rows[0].drop_columns("_deleted"), table / "by_spark", use_deprecated_int96_timestamps=True)
    file = AddAction("by_spark", (table / "by_spark").stat().st_size, {}, 0, True, "{}")
    opened = DeltaTable(str(table))
    opened.create_write_transaction([file], "append", opened.schema())
    with pytest.raises(NotPlain, match="times"):
        commit_small(table, rows[1], said(2), merged=True)


def test_what_ends_delta_rs_itself_is_left_to_spark(tmp_path):
    """It takes the path for an address; that was no error that anybody foresaw, and stopped all tables."""
    rows = typed_small(collected((b"k", number(1))), {1: Columns(NUMBER)}, merged=False)
    with pytest.raises(NotPlain, match="InvalidDomainCharacter"):
        commit_small(tmp_path / "a[b]" / "t", rows, said(1), merged=False)


def test_a_table_that_delta_rs_does_not_write_is_no_news(tmp_path, monkeypatch):
    """One with a column that became wider was told of at every commit."""

    def refuse(*args, **options):
        raise DeltaProtocolError("Unsupported table features required: [TypeWidening]")

    monkeypatch.setattr(deltalake, "write_deltalake", refuse)
    rows = typed_small(collected((b"k", number(1))), {1: Columns(NUMBER)}, merged=False)
    with capture_logs() as told, pytest.raises(NotPlain, match="TypeWidening"):
        commit_small(tmp_path / "t", rows, said(1), merged=False)
    assert told == []


def test_what_fails_after_the_commit_is_not_written_again(tmp_path, monkeypatch):
    """Whatever it is: delta-rs raises plain exceptions too."""
    rows = typed_small(collected((b"k", number(1))), {1: Columns(NUMBER)}, merged=False)
    write = deltalake.write_deltalake

    def write_and_fail(*args, **options):
        write(*args, **options)
        raise Exception("External error")  # noqa: TRY002  as delta-rs does

    monkeypatch.setattr(deltalake, "write_deltalake", write_and_fail)
    commit_small(tmp_path / "t", rows, said(1), merged=False)
    assert DeltaTable(str(tmp_path / "t")).version() == 0

    def fail(*args, **options):
        raise Exception("External error")  # noqa: TRY002  as delta-rs does

    monkeypatch.setattr(deltalake, "write_deltalake", fail)
    with pytest.raises(NotPlain, match="External error"):
        commit_small(tmp_path / "t", rows, said(2), merged=False)


def test_books_alone_are_a_commit_without_rows(tmp_path):
    table = tmp_path / "t"
    with pytest.raises(TableGone):
        commit_books(table, said(2))
    rows = typed_small(collected((b"k", number(1))), {1: Columns(NUMBER)}, merged=False)
    commit_small(table, rows, said(1), merged=False)
    commit_books(table, said(2))
    assert last_commit(table) == Found(1, said(2))
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize("merged", [False, True])
def test_a_table_that_is_gone_is_not_begun_with_a_later_commit(tmp_path, monkeypatch, merged):
    """Which says that the table has all that came before it. Removed before it is opened, and after."""
    table = tmp_path / "t"
    rows = typed_small(collected((b"k", change("c", 1))), {1: Columns(CHANGE)}, merged=merged)
    commit_small(table, rows, said(1), merged=merged)
    check = delta_small._check_columns

    def check_and_remove(*args):
        check(*args)
        shutil.rmtree(table)

    monkeypatch.setattr(delta_small, "_check_columns", check_and_remove)
    with pytest.raises(NotPlain):
        commit_small(table, rows, said(2), merged=merged)
    assert not is_table(table)
    with pytest.raises(TableGone, match="the table is gone"):
        commit_small(table, rows, said(2), merged=merged)
    assert not is_table(table)


@pytest.mark.spark
def test_the_same_tables_come_with_sparks_writer_and_without(lake, monkeypatch):
    """Decoded here, decoded by Spark, and written by Spark."""
    write_catalog(lake.connection, {"topic:planes": {"kind": "changelog", "key": ["tailnum"]}})
    for topic in ("kinds", "planes", "bytes"):
        ensure_topic(lake.connection, topic, 1)
    row = {name: value for name, (_, value) in KINDS.items()}
    lake.send("kinds", [(b"a", row), (None, row | {"maybe": 5, "data": b""}), (b"", None)], 7)
    lake.send("planes", [plane("c", "N1"), plane("c", "N2"), plane("u", "N2", 7), plane("d", "N1"), (b"N3", None)], 3)
    lake.send("bytes", [(b"a", b'{"x": 1}'), (b"b", b"\0\xff"), (b"c", None)])
    lake.run()
    lake.wait(lambda: {("lakehouse", "kinds", 3), ("lakehouse", "planes", 5), ("lakehouse", "bytes", 3)} <= lake.said())
    lake.send("planes", [plane("d", "N2"), plane("c", "N4", 1)], 3)
    lake.wait(lambda: ("lakehouse", "planes", 7) in lake.said())
    lake.send("planes", [(b"N4", None)])
    lake.wait(lambda: ("lakehouse", "planes", 8) in lake.said())
    lake.lakehouse.stop()
    for name, limit in (("decoded", "DECODED_RECORDS"), ("written", "COLLECTED_BYTES")):
        monkeypatch.setattr(delta_small, limit, 0)
        lake.lakehouse = lake.make(name)
        lake.lakehouse.start()
        lake.wait(lambda name=name: {(name, "kinds", 3), (name, "planes", 8), (name, "bytes", 3)} <= lake.said())
        lake.lakehouse.stop()
    places = (lake.tables, lake.directory / "decoded" / "tables", lake.directory / "written" / "tables")
    for topic in ("kinds", "planes", "bytes"):
        tables = [DeltaTable(str(place / topic)) for place in places]
        assert ["delta-rs" in each.history()[0]["engineInfo"] for each in tables] == [True, True, False]
        assert tables[0].schema() == tables[1].schema() == tables[2].schema()
        for read in (lambda table: table.to_pyarrow_table().to_pylist(), read_by(lake.spark)):
            found = [sorted(map(repr, read(table))) for table in tables]
            assert found[0] == found[1] == found[2]


def read_by(spark):
    return lambda table: spark.read.format("delta").load(table.table_uri).collect()


@pytest.mark.spark
def test_a_table_of_few_records_does_not_wait_for_those_of_many(lake, monkeypatch):
    """Whose rows Spark decodes."""
    monkeypatch.setattr(delta_small, "DECODED_RECORDS", 2)
    for topic in ("few", "many"):
        ensure_topic(lake.connection, topic, 1)
    lake.send("few", [(b"a", {"number": 1, "origin": None, "at": AT})])
    lake.send("many", [(b"a", {"number": n, "origin": None, "at": AT}) for n in range(5)])
    decode, written = SparkWriter.typed, []

    def see(writer, rows, topic, slices):
        written.append((topic, DeltaTable.is_deltatable(str(lake.tables / "few"))))
        return decode(writer, rows, topic, slices)

    monkeypatch.setattr(SparkWriter, "typed", see)
    lake.run()
    lake.wait(lambda: {("lakehouse", "few", 1), ("lakehouse", "many", 5)} <= lake.said())
    lake.lakehouse.stop()
    assert written == [("many", True)]
