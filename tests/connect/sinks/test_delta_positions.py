"""Where tables go on, which are held instead, and what their next commit says."""

import shutil

import msgspec
import pytest
from deltalake import DeltaTable

from mainstem.audit.books import Verdict
from mainstem.audit.report import audit
from mainstem.client.append import append
from mainstem.client.topics import cluster_id, delete, end_offsets, ensure_topic
from mainstem.client.writer import TransactionalWriter
from mainstem.connect.sinks.delta_held import HeldTables
from mainstem.connect.sinks.delta_log import PartitionBooks, TableChanged, TableCommit, TableGone
from mainstem.connect.sinks.delta_positions import Positions, TopicChanged
from mainstem.connect.sinks.delta_rows import Columns, typed_small
from mainstem.connect.sinks.delta_small import commit_small
from mainstem.connect.sinks.delta_topics import Slice
from mainstem.core.clock import ManualClock
from mainstem.registry import avro
from tests.support.lakehouse import FLIGHT, NUMBER, collected, flight, number
from tests.support.undecided import undecided


def write(directory, commit, version=None):
    log = directory / commit.topic / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    info = {"commitInfo": {"userMetadata": commit.metadata}}
    (log / f"{commit.number - 1 if version is None else version:020}.json").write_bytes(msgspec.json.encode(info))


@pytest.fixture
def held():
    return HeldTables("lake", ManualClock())


@pytest.fixture
def positions(log_connection, tmp_path, held):
    ensure_topic(log_connection, "flights", 2)
    return Positions(log_connection, tmp_path, held)


def test_a_table_goes_on_where_it_is_and_is_held_where_its_topic_is_another(log_connection, tmp_path, held, positions):
    assert positions.open("flights".__eq__) == {"flights": {"0": 0, "1": 0}}
    append(log_connection, "flights", [(None, b"x")] * 3)
    positions.recognise(["flights"])
    commit = positions.next_commit("flights", [Slice(0, None, 3, 7)], {}, {0: 3})
    assert commit.is_first
    write(tmp_path, commit)
    assert positions.open("flights".__eq__) == {"flights": {"0": 3, "1": 0}}
    write(tmp_path, msgspec.structs.replace(commit, number=2, topic_id="another"))
    ends = {str(number): end for number, end in end_offsets(log_connection, "flights").items()}
    assert positions.open("flights".__eq__) == {"flights": ends}
    assert "the table is of topic another" in held.reasons["flights"]


def test_a_held_table_whose_topic_has_an_open_transaction_does_not_hold_up_the_others(
    log_connection, tmp_path, held, positions
):
    """Its place was the end of all records, and the query reads up to the transaction: it failed at every start."""
    (tmp_path / "flights" / "_delta_log").mkdir(parents=True)
    (tmp_path / "flights" / "_delta_log" / f"{0:020}.json").write_bytes(b'{"commitInfo": damaged}')
    with undecided(log_connection, "stranger", lambda word: [("flights", None, word.encode())]):
        starts = positions.open(lambda topic: topic == "flights")
        stable = end_offsets(log_connection, "flights", committed=True)
        assert held.reasons.keys() == {"flights"}
        assert starts == {"flights": {"0": stable[0], "1": 0}}
        assert stable[0] < end_offsets(log_connection, "flights")[0]


def test_the_books_go_on_from_those_of_the_last_commit(positions):
    """What is wrong is no row; null values are counted by themselves."""
    positions.open("flights".__eq__)
    positions.recognise(["flights"])
    slices = [Slice(0, 1, 5, 2**64 - 1), Slice(0, None, 2, 3)]
    positions.written([positions.next_commit("flights", slices, {("flights", 0): 1, ("planes", 0): 9}, {0: 8, 1: 1})])
    commit = positions.next_commit("flights", [Slice(0, 1, 1, 1)], {}, {0: 9})
    assert commit.number == 2
    assert commit.partitions == {
        0: PartitionBooks(next=9, rows=5, tombstones=2, quarantined=1, hash=3),
        1: PartitionBooks(next=1),
    }
    assert positions.commits["flights"].number == 1


def test_a_topic_that_is_made_anew_while_it_is_read_is_another_topic(log_connection, positions):
    positions.open("flights".__eq__)
    positions.recognise(["flights"])
    delete(log_connection, ["flights"])
    ensure_topic(log_connection, "flights", 2)
    with pytest.raises(TopicChanged, match="topic flights was deleted or made anew"):
        positions.recognise(["flights"])


def test_a_table_that_has_books_gets_no_first_commit(log_connection, tmp_path, positions):
    """A release before this one did not count; the first commit may make a table."""
    books = {0: PartitionBooks(next=3)}
    write(tmp_path, TableCommit("flights", books, cluster_id(log_connection), number=0), 0)
    positions.open("flights".__eq__)
    positions.recognise(["flights"])
    assert positions.next_commit("flights", [], {}, {0: 4}).number == 2


def test_a_table_is_moved_on_where_its_topic_is_not_its_books_alone(positions, held):
    """Neither one that has not been begun nor one that is held, nor again and again."""
    positions.open("flights".__eq__)
    positions.recognise(["flights"])
    ends = {"flights": {0: 8, 1: 0}, "planes": {0: 7}}
    assert positions.moved(ends) == set()
    positions.written([positions.next_commit("flights", [Slice(0, 1, 5, 7)], {}, ends["flights"])])
    assert positions.moved(ends) == set()
    assert positions.moved({"flights": {0: 8, 1: 1}}) == positions.moved({"flights": {2: 1}}) == {"flights"}
    held.hold("flights", OSError("full"))
    assert positions.moved({"flights": {0: 9}}) == set()


def commit_three(positions, tables, first):
    """The next three records, as the sink writes them."""
    positions.recognise(["numbers"])
    commit = positions.next_commit("numbers", [Slice(0, 1, 3, 7)], {}, {0: first + 3})
    positions.check_unchanged("numbers")
    rows = typed_small(
        collected(*((b"k", number(n)) for n in range(first, first + 3))), {1: Columns(NUMBER)}, merged=False
    )
    commit_small(tables / "numbers", rows, commit, merged=False)
    positions.written([commit])


@pytest.fixture
def numbers(log_connection):
    ensure_topic(log_connection, "numbers", 1)
    append(log_connection, "numbers", [(b"k", number(n)) for n in range(9)])


def found_in(table):
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["number"].to_pylist())


def test_a_table_that_is_replaced_by_an_older_copy_is_filled_from_there(numbers, tmp_path, held, positions):
    """While the sink runs: its next commit claimed what the copy lacked, and the audit balanced."""
    positions.open("numbers".__eq__)
    table, copy = tmp_path / "numbers", tmp_path / "_copy"
    commit_three(positions, tmp_path, 0)
    shutil.copytree(table, copy)
    commit_three(positions, tmp_path, 3)
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    with pytest.raises(TableChanged, match="expected commit 2 as our newest one, found 1"):
        commit_three(positions, tmp_path, 6)
    assert positions.open("numbers".__eq__) == {"numbers": {"0": 3}}
    commit_three(positions, tmp_path, 3)
    commit_three(positions, tmp_path, 6)
    assert found_in(table) == list(range(9))

    shutil.rmtree(table)
    with pytest.raises(TableGone):
        positions.check_unchanged("numbers")
    positions.open("numbers".__eq__)
    positions.check_unchanged("numbers")
    shutil.copytree(copy, table)  # where nothing was
    with pytest.raises(TableChanged, match="expected commit 0 as our newest one, found 1"):
        positions.check_unchanged("numbers")
    assert not held.reasons


def test_a_table_that_is_restored_is_filled_from_there(numbers, tmp_path, held, positions):
    """While the sink runs, and while it does not."""
    positions.open("numbers".__eq__)
    for first in (0, 3):
        commit_three(positions, tmp_path, first)
    DeltaTable(str(tmp_path / "numbers")).restore(0)
    with pytest.raises(TableChanged, match="expected commit 2 as our newest one, found 1"):
        commit_three(positions, tmp_path, 6)
    assert positions.open("numbers".__eq__) == {"numbers": {"0": 3}}
    for first in (3, 6):
        commit_three(positions, tmp_path, first)
    assert found_in(tmp_path / "numbers") == list(range(9))
    assert positions.open("numbers".__eq__) == {"numbers": {"0": 9}}
    assert not held.reasons


@pytest.mark.spark
def test_a_table_that_misses_what_the_log_no_longer_has_is_held(lake):
    ensure_topic(lake.connection, "flights", 2)
    ensure_topic(lake.connection, "quiet", 1)
    lake.send("flights", [(None, flight(1)), (None, flight(2))])  # to partition 0
    writer = TransactionalWriter(lake.connection, "planner")
    writer.open()
    writer.begin()
    writer.send("quiet", 0, b"a", avro.encode(1, FLIGHT, flight(1)))
    writer.commit({})
    writer.close()
    lake.run()
    lake.wait_for("flights", [(1,), (2,)], "number")
    lake.wait_for("quiet", [(1,)], "number")
    lake.wait(lambda: ("lakehouse", "quiet", 2) in lake.said())
    lake.lakehouse.stop()

    # the lakehouse is down; what it had not read is removed, and of the quiet topic all that it had, the marker too
    lake.send("flights", [(None, flight(3)), (None, flight(4))])
    lake.send("flights", [(None, flight(5))])
    lake.delete_before("flights", 4)
    lake.delete_before("quiet", 2)
    lake.run()
    path = lake.tables / "flights"
    assert lake.lakehouse.held == {
        "flights": f"{path}: the table has flights-0 up to offset 2, and the log starts at offset 4: what lay between was "
        "removed before the table had it"
    }
    append(lake.connection, "quiet", [(b"b", avro.encode(1, FLIGHT, flight(2)))])
    lake.wait_for("quiet", [(1,), (2,)], "number")
    assert lake.rows("flights", "number") == [(1,), (2,)]
    (line,) = [line for line in audit(lake.connection, ["flights"]) if line.name == "lakehouse" and line.missing]
    assert (line.verdict, line.detail) == (Verdict.WRONG, "offsets 2 to 4 were deleted before it read them")

    # a person moves it away, and goes on with what there is
    path.rename(lake.directory / "moved")
    lake.wait_for("flights", [(5,)], "number")
    lake.wait(lambda: ("lakehouse", "flights", 5) in lake.said())
    assert [line for line in audit(lake.connection, ["flights"]) if line.verdict is Verdict.WRONG] == []
