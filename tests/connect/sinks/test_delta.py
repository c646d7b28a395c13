"""The tables, written by Spark or without its writer, are read back by delta-rs;
that both ways are one, Spark reads too.
"""

import shutil
import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from mainstem.audit.books import Verdict
from mainstem.audit.report import audit
from mainstem.client.catalog import entries, read_catalog, write_catalog
from mainstem.client.reports import Report
from mainstem.client.topics import delete, ensure_topic
from mainstem.connect.sinks import delta_small
from mainstem.connect.sinks.delta import Lakehouse, reports_of
from mainstem.connect.sinks.delta_log import PartitionBooks, TableCommit
from mainstem.connect.sinks.delta_positions import Positions
from mainstem.connect.sinks.delta_small import SmallWriter
from mainstem.connect.sinks.delta_spark import SparkWriter
from mainstem.connect.sinks.delta_topics import begin_at
from mainstem.records.fingerprint import fingerprint
from mainstem.registry import avro
from tests.support.lakehouse import FLIGHT, HIGH, flight, plane
from tests.support.undecided import DECIDED, VISIBLE, undecided


def test_a_tables_statement_covers_all_from_offset_0():
    books = PartitionBooks(next=7, rows=4, tombstones=1, quarantined=1, hash=5)
    assert reports_of(TableCommit("t", {0: PartitionBooks(), 1: books}), "lake") == [
        Report(reader="lake", topic="t", partition=1, end=7, rows=4, tombstones=1, quarantined=1, hash=5)
    ]


@pytest.mark.spark
def test_a_topic_that_comes_while_the_query_is_started_does_not_fail_it(lake, monkeypatch):
    """Spark's `startingOffsets` has to name every topic that is there: it failed, and all tables began again."""
    ensure_topic(lake.connection, "flights", 1)
    lake.send("flights", [(b"a", {"number": 1, "origin": "JFK", "at": 0})])
    opened, failures = Positions.open, []

    def open_and_more(self, matches):
        starts = opened(self, matches)
        ensure_topic(lake.connection, "late", 2)
        lake.send("late", [(b"b", {"number": 2, "origin": "LGA", "at": 0})])
        return starts

    monkeypatch.setattr(Positions, "open", open_and_more)
    monkeypatch.setattr(Lakehouse, "_failed", lambda self, error: failures.append(error))
    query = lake.run()
    lake.wait_for("flights", [(1,)], "number")
    lake.wait_for("late", [(2,)], "number")
    query.stop()
    assert failures == []


@pytest.mark.spark
def test_a_topic_that_is_deleted_while_it_is_followed_is_told_as_that(lake):
    """Spark's words spoke of data that may have been lost."""
    for topic in ("flights", "others"):
        ensure_topic(lake.connection, topic, 1)
        lake.send(topic, [(b"a", {"number": 1, "origin": "JFK", "at": 0})])
    query, told = lake.run(), []

    def failed():
        told.append(query.states[0].error)
        return "what it was to read next is gone: a topic was deleted, or its records were" in told

    for topic in ("flights", "others"):
        lake.wait_for(topic, [(1,)], "number")
    delete(lake.connection, ["others"])
    lake.wait(failed)
    lake.send("flights", [(b"b", {"number": 2, "origin": "JFK", "at": 0})])
    lake.wait_for("flights", [(1,), (2,)], "number")
    query.stop()


@pytest.mark.spark
@pytest.mark.parametrize("limit", ["COLLECTED_BYTES", "DECODED_RECORDS"])
def test_topics_become_tables_and_stay_exact_through_lost_checkpoints(lake, monkeypatch, limit):
    monkeypatch.setattr(delta_small, limit, 0)  # written by Spark, or only decoded by it
    ensure_topic(lake.connection, "flights", 2)
    sent = lake.send(
        "flights", [(b"a", {"number": 1, "origin": "JFK", "at": 0}), (b"b", {"number": 2, "origin": None, "at": 1})]
    )
    query = lake.run()
    lake.wait_for("flights", [(1, "JFK"), (2, None)], "number", "origin")

    # a new topic while the query runs, of a changelog: the rows as they are now
    ensure_topic(lake.connection, "fleet.planes", 1, {"cleanup.policy": "compact"})
    write_catalog(lake.connection, {"topic:fleet.planes": {"kind": "changelog", "key": ["tailnum"]}})
    n1, n2 = {"tailnum": "N1", "seats": 100}, {"tailnum": "N2", "seats": None}
    lake.send(
        "fleet.planes",
        [(b"N1", {"op": "r", "before": None, "after": n1}), (b"N2", {"op": "c", "before": None, "after": n2})],
        3,
    )
    lake.wait_for("fleet.planes", [("N1", 100), ("N2", None)], "tailnum", "seats")
    bigger = {"tailnum": "N1", "seats": 108}
    lake.send(
        "fleet.planes",
        [
            (b"N1", {"op": "u", "before": None, "after": bigger}),
            (b"N2", {"op": "d", "before": n2, "after": None}),
            (b"N2", None),
        ],
        3,
    )
    lake.wait_for("fleet.planes", [("N1", 108)], "tailnum", "seats")

    # the checkpoint is lost, a column is added, and something that is no Avro arrives
    query.stop()
    shutil.rmtree(lake.checkpoint)
    sent += lake.send("flights", [(b"c", {"number": 3, "origin": "LGA", "at": 2, "gate": "A1"})], 2)
    far = avro.encode(
        1, FLIGHT.replace('"logicalType": "timestamp-micros"', '"doc": ""'), flight(4) | {"at": 2**63 - 1}
    )
    sent += lake.send("flights", [(b"d", b"\0\0\0\0\x01\xff\xff\xff"), (b"e", b"not avro"), (b"f", far), (b"g", HIGH)])
    query = lake.run()
    lake.wait_for("flights", [(1, None), (2, None), (3, "A1")], "number", "gate")
    lake.wait_for(
        "_quarantine",
        [("flights", value) for value in (b"not avro", b"\0\0\0\0\x01\xff\xff\xff", far, HIGH)],
        "topic",
        "value",
    )
    query.stop()
    assert lake.rows("flights", "number") == [(1,), (2,), (3,)]

    # truncated at the source: only what came after it is left
    query = lake.run()
    lake.send(
        "fleet.planes",
        [
            (b"\0truncate", {"op": "t", "before": None, "after": None}),
            (b"N3", {"op": "c", "before": None, "after": {"tailnum": "N3", "seats": 1}}),
        ],
        3,
    )
    lake.wait_for("fleet.planes", [("N3",)], "tailnum")
    query.stop()

    # the books: what was sent is what the reader says it saw
    said = lake.statements()
    flights = [s for (topic, _), s in said.items() if topic == "flights"]
    assert sum(s.rows for s in flights) == 3
    assert sum(s.quarantined for s in flights) == 4
    assert sum(s.hash for s in flights) % 2**64 == sum(fingerprint(key, value) for key, value in sent) % 2**64


@pytest.mark.spark
@pytest.mark.parametrize("limit", ["COLLECTED_BYTES", "DECODED_RECORDS"])
def test_no_table_shows_what_was_aborted_or_is_open(lake, monkeypatch, limit):
    monkeypatch.setattr(delta_small, limit, 0)  # written by Spark, or only decoded by it
    ensure_topic(lake.connection, "flights", 1)

    def make(word):
        return [("flights", word.encode(), avro.encode(1, FLIGHT, flight(1, word)))]

    with undecided(lake.connection, "stranger", make) as commit:
        lake.run()
        lake.wait_for("flights", [(word,) for word in VISIBLE], "origin")
        commit()
        lake.wait_for("flights", [(word,) for word in DECIDED], "origin")


@pytest.mark.spark
def test_the_books_of_a_batch_that_changes_no_row_are_kept(lake):
    """Delta leaves out a commit without files unless told otherwise, and the books in its metadata with it."""
    ensure_topic(lake.connection, "flights", 1)
    ensure_topic(lake.connection, "planes", 1)
    write_catalog(lake.connection, {"topic:flights": {"subject": "flights-value"}})
    lake.send("flights", [(b"a", flight(1))])
    lake.send("planes", [plane("c", "N1")], 3)
    lake.run()
    lake.wait_for("flights", [(1,)], "number")
    lake.wait_for("planes", [("N1",)], "tailnum")
    lake.send("flights", [(b"b", b"not avro")])
    lake.send("planes", [plane("c", "N2"), plane("d", "N2"), (b"N2", None)], 3)
    lake.wait(
        lambda: {topic: said.end for (topic, _), said in lake.statements().items()} == {"flights": 2, "planes": 4}
    )
    lake.lakehouse.stop()
    before = lake.statements()

    lake.run()
    commits = lake.lakehouse._positions.commits.values()
    assert {said.topic: said for commit in commits for said in reports_of(commit, "lakehouse")} == {
        topic: statement for (topic, _), statement in before.items()
    }
    lake.send("flights", [(b"c", flight(3))])
    lake.wait_for("flights", [(1,), (3,)], "number")
    lake.lakehouse.stop()
    assert lake.statements()["flights", 0].quarantined == 1
    assert lake.rows("planes", "tailnum") == [("N1",)]


@pytest.mark.spark
def test_a_table_whose_topic_moves_without_records_is_not_held_for_those(lake):
    """As by the marker of a transaction, where a batch ends between it and the records: when retention had removed
    both, the table was held, and the audit exited with 1, although nothing was missing.
    """
    topics = {"flights", "wide"}
    for topic in topics:
        ensure_topic(lake.connection, topic, 1)
        lake.send(topic, [(b"a", flight(1))])
    lake.run()
    lake.wait(lambda: {("lakehouse", topic, 1) for topic in topics} <= lake.said())
    lake.send("wide", [(b"b", flight(2**40))], 4)  # delta-rs does not write this table any more
    lake.wait(lambda: ("lakehouse", "wide", 2) in lake.said())
    producer = Producer(lake.connection.confluent(transactional_id="planner") | {"log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    for topic in topics:
        producer.produce(topic, key=b"a", value=avro.encode(1, FLIGHT, flight(3)), partition=0)
    assert producer.flush(60) == 0  # an abort drops what is still queued in the client
    producer.abort_transaction(60)
    lake.wait(lambda: {("lakehouse", "flights", 3), ("lakehouse", "wide", 4)} <= lake.said())
    commits = {topic: commit.number for topic, commit in lake.lakehouse._positions.commits.items()}
    lake.send("flights", [(b"b", flight(2))])
    lake.wait_for("flights", [(1,), (2,)], "number")
    lake.lakehouse.stop()
    lake.delete_before("flights", 3)
    lake.delete_before("wide", 4)
    lake.run()
    assert lake.lakehouse.held == {}
    now = {topic: commit.number for topic, commit in lake.lakehouse._positions.commits.items()}
    assert now == {"flights": commits["flights"] + 1, "wide": commits["wide"]}  # no more books than there is news
    assert lake.rows("wide", "number") == [(1,), (2**40,)]
    lines = [line for line in audit(lake.connection, topics) if line.tier == "reader"]
    assert {line.verdict for line in lines} == {Verdict.COMPACTED}


@pytest.mark.spark
def test_what_one_table_cannot_take_holds_up_that_table_only(lake):
    ensure_topic(lake.connection, "flights", 1)
    ensure_topic(lake.connection, "other", 1)
    lake.send("flights", [(b"a", flight(1))])
    lake.send("other", [(b"a", flight(1))])
    lake.run()
    lake.wait_for("other", [(1,)], "number")
    lake.wait_for("flights", [(1,)], "number")

    # the registry allows a wider number: the column becomes wider, and takes the narrower ones too
    lake.send("flights", [(b"b", flight(2**40))], 4)
    lake.wait_for("flights", [(1,), (2**40,)], "number")
    lake.send("flights", [(b"c", flight(3))], 1)
    lake.wait_for("flights", [(1,), (3,), (2**40,)], "number")

    # a number that becomes a text does not fit: this table waits, the other one goes on
    lake.send("flights", [(b"d", flight("four"))], 5)
    lake.wait(lambda: "flights" in lake.lakehouse.held)
    assert "column number: expected bigint, found string" in lake.lakehouse.held["flights"]
    sink, table = lake.lakehouse.states
    assert (sink.name, sink.state) == ("sink lakehouse", "running")
    assert (table.name, table.state) == ("sink lakehouse: table flights", "failed")
    assert (table.error, bool(table.hint)) == (lake.lakehouse.held["flights"], True)
    lake.send("other", [(b"b", flight(2))])
    lake.wait_for("other", [(1,), (2,)], "number")
    assert lake.rows("flights", "number") == [(1,), (2**40,), (3,)]

    # a topic that is deleted fails the query, which starts again without it
    query = lake.lakehouse.query
    delete(lake.connection, ["other"])
    ensure_topic(lake.connection, "third", 1)
    lake.send("third", [(b"a", flight(1))])
    lake.wait_for("third", [(1,)], "number")
    assert lake.lakehouse.query is not query

    # made anew under its name, it is another topic: its table is not continued with it
    ensure_topic(lake.connection, "other", 1)
    lake.send("other", [(b"a", flight(7)), (b"b", flight(8)), (b"c", flight(9))])
    lake.wait(lambda: "the table is of topic" in lake.lakehouse.held.get("other", ""))
    assert ("sink lakehouse: table other", "failed") in [(each.name, each.state) for each in lake.lakehouse.states]
    shutil.rmtree(lake.tables / "other")
    lake.wait_for("other", [(7,), (8,), (9,)], "number")
    lake.wait(lambda: ("sink lakehouse: table other", "running") in [(e.name, e.state) for e in lake.lakehouse.states])

    # bytes of a commit that are no UTF-8: they kept the whole sink, and its driver, from starting
    lake.lakehouse.stop()
    commit = max((lake.tables / "third" / "_delta_log").glob("*.json"))
    commit.write_bytes(commit.read_bytes().replace(b"mainstem", b"main\xff\xfetem"))
    lake.run()
    assert f"{commit}: expected a commit" in lake.lakehouse.held["third"]
    (third,) = [each for each in lake.lakehouse.states if each.name.endswith("third")]
    assert "filled anew" in third.hint
    lake.send("other", [(b"d", flight(10))])
    lake.wait_for("other", [(7,), (8,), (9,), (10,)], "number")


@pytest.mark.spark
def test_two_sinks_and_topics_of_nearly_one_name_do_not_meet(lake):
    """`order-items` and `order_items` shared a view, with all sinks, and swapped their rows;
    all sinks were one reader.
    """
    topics = ["order-items", "order_items"]
    for topic in topics:
        ensure_topic(lake.connection, topic, 1)
        lake.send(topic, [plane("c", f"{topic} 0")], 3)
    lake.run()
    copy = lake.make("copy")
    copy.start()
    try:
        for turn in range(3):  # the first makes the tables, the others merge
            for topic in topics:
                lake.wait_for(topic, [(f"{topic} {n}",) for n in range(turn + 1)], "tailnum")
                lake.send(topic, [plane("c", f"{topic} {turn + 1}")], 3)
        for topic in topics:
            lake.wait_for(topic, [(f"{topic} {n}",) for n in range(4)], "tailnum")
        lake.wait(
            lambda: all((reader, topic, 4) in lake.said() for reader in ("lakehouse", "copy") for topic in topics)
        )
        assert (lake.lakehouse.held, copy.held) == ({}, {})
    finally:
        copy.stop()
    lake.lakehouse.stop()
    lake.tables = lake.directory / "copy" / "tables"
    for topic in topics:
        assert lake.rows(topic, "tailnum") == [(f"{topic} {n}",) for n in range(4)]
    sinks = entries(read_catalog(lake.connection), "sink")
    assert sinks.keys() >= {"lakehouse", "copy"}
    lines = [line for line in audit(lake.connection, topics) if line.tier == "reader"]
    assert {(line.partition.topic, line.name) for line in lines} == {
        (topic, reader) for topic in topics for reader in ("lakehouse", "copy")
    }
    assert {line.verdict for line in lines} == {Verdict.BALANCED}


@pytest.mark.spark
def test_a_table_that_is_removed_or_replaced_is_filled_anew_and_what_is_no_table_is_left_alone(lake):
    """While the sink runs: it began anew where the old one had been, and its books said that it had everything."""
    for topic in ("flights", "other"):
        ensure_topic(lake.connection, topic, 1)
        lake.send(topic, [(b"a", flight(1)), (b"b", flight(2))])
    for name in ("lost+found", "damaged"):  # those that a mounted disk brings, and a topic's
        (lake.tables / name).mkdir(parents=True)
        (lake.tables / name / "_delta_log").symlink_to("_delta_log")
    lake.run()
    assert list(lake.lakehouse.held) == ["damaged"]
    for topic in ("flights", "other"):
        lake.wait_for(topic, [(1,), (2,)], "number")
    lake.wait(lambda: ("lakehouse", "flights", 2) in lake.said())
    shutil.rmtree(lake.tables / "flights")
    lake.send("flights", [(b"c", flight(3))])
    lake.wait_for("flights", [(1,), (2,), (3,)], "number")
    lake.wait(lambda: ("lakehouse", "flights", 3) in lake.said())
    assert lake.statements()["flights", 0].rows == 3

    # by an older copy of itself: its next commit claimed what that lacks
    table, copy = lake.tables / "other", lake.directory / "copy"
    shutil.copytree(table, copy)
    lake.send("other", [(b"c", flight(3))])
    lake.wait_for("other", [(1,), (2,), (3,)], "number")
    lake.wait(lambda: ("lakehouse", "other", 3) in lake.said())
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    lake.send("other", [(b"d", flight(4))])
    lake.wait_for("other", [(1,), (2,), (3,), (4,)], "number")


@pytest.mark.spark
@pytest.mark.parametrize(("writer", "steps"), [(SmallWriter, ["write"]), (SparkWriter, ["_append", "_merge"])])
def test_a_table_that_is_removed_while_it_is_written_is_filled_anew(lake, monkeypatch, writer, steps):
    """It was begun anew with this batch only, and with the metadata of all that had been."""
    if writer is SparkWriter:
        monkeypatch.setattr(delta_small, "COLLECTED_BYTES", 0)
    for topic in ("flights", "planes"):
        ensure_topic(lake.connection, topic, 1)
    lake.send("flights", [(b"a", flight(1)), (b"b", flight(2))])
    lake.send("planes", [plane("c", "N1"), plane("c", "N2")], 3)
    lake.run()
    lake.wait(lambda: {("lakehouse", "flights", 2), ("lakehouse", "planes", 2)} <= lake.said())
    removed = []

    def removing(write):
        def remove_and_write(self, rows, commit, *args):
            if commit.topic not in removed:
                removed.append(commit.topic)
                shutil.rmtree(lake.tables / commit.topic)
            return write(self, rows, commit, *args)

        return remove_and_write

    for step in steps:
        monkeypatch.setattr(writer, step, removing(getattr(writer, step)))
    lake.send("flights", [(b"c", flight(3))])
    lake.send("planes", [plane("c", "N3")], 3)
    lake.wait(
        lambda: {("lakehouse", "flights", 3), ("lakehouse", "planes", 3)} <= lake.said() and not lake.lakehouse.held
    )
    lake.lakehouse.stop()
    assert sorted(removed) == ["flights", "planes"]
    assert lake.rows("flights", "number") == [(1,), (2,), (3,)]
    assert lake.rows("planes", "tailnum") == [("N1",), ("N2",), ("N3",)]

    # as half of a removal leaves it, which a person has to finish: the newest metadata still claim everything
    log = lake.tables / "flights" / "_delta_log"
    (log / f"{0:020}.json").rename(log / f"{1:020}.json")
    lake.run()
    assert "what came before is missing" in lake.lakehouse.held["flights"]


@pytest.mark.spark
def test_no_batch_is_cut_off_for_a_table_that_is_due_nor_waits_for_long_until_it_is_tried(lake):
    """A step that did not come, from the loop that also steps the jobs, was waited for: no table was written."""
    lake.lakehouse = sink = lake.make()
    did, steps_come = [], False

    class Stopping(threading.Event):
        def wait(self, timeout=None):
            if timeout and not self.is_set():
                did.append("gap")
                if steps_come:
                    sink.step()
            return self.is_set()

    def write(batch, *places):
        did.append(batch)
        lake.clock.advance_ms(1_000_000)
        sink.step()
        did.append("written")

    def start():
        sink.stop()
        did.append("start")

    sink._stopping, sink._write, sink.start = Stopping(), write, start
    sink.query = SimpleNamespace(isActive=True, stop=lambda: sink._batch("while it is stopped", 2))
    sink._held.hold("flights", OSError("full"))
    begin_at(lake.checkpoint, {})
    (lake.checkpoint / "offsets").mkdir()
    for number in range(2):
        (lake.checkpoint / "offsets" / f"{number}").write_text("v1\n{}\n{}\n")
    sink._batch("first", 0)
    sink._batch("second", 1)
    assert did == ["first", "written", "gap", "second", "written"]
    steps_come = True
    sink._batch("third", 2)
    assert did[5:] == ["gap", "start"]
