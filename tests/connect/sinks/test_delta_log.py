import json

import pytest

from mainstem.connect.sinks.delta_log import (
    Found,
    PartitionBooks,
    TableCommit,
    check_whole,
    is_table,
    last_commit,
    newest_since,
)
from mainstem.core import CorruptData, TopicPartition

COMMIT = TableCommit("flights", {0: PartitionBooks(next=41, rows=40, hash=2**63)}, "cluster", "id")


def write(table, version, metadata=None, *, rows=3, operation="WRITE"):
    directory = table / "_delta_log"
    directory.mkdir(parents=True, exist_ok=True)
    info = {"timestamp": 1, "operation": operation} | ({"userMetadata": metadata} if metadata is not None else {})
    actions = [{"commitInfo": info}, *({"add": {"path": f"{n}.parquet"}} for n in range(rows))]
    lines = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
    (directory / f"{version:020}.json").write_text(lines + "\n")


def test_our_newest_commit_is_found_below_those_of_others(tmp_path):
    write(tmp_path, 0)
    write(tmp_path, 1, TableCommit("flights", {0: PartitionBooks(next=7)}).metadata)
    write(tmp_path, 2, COMMIT.metadata)
    write(tmp_path, 3)
    write(tmp_path, 4, "somebody's own words")
    assert is_table(tmp_path)
    assert last_commit(tmp_path) == Found(2, COMMIT)
    assert COMMIT.positions == {TopicPartition("flights", 0): 41}


def test_a_table_that_is_compacted_after_each_merge_has_the_merges_metadata_once(tmp_path):
    """With `delta.autoOptimize.autoCompact` Delta writes them once more: it was held, as if two sinks wrote it."""
    for version in range(4):
        write(tmp_path, version, numbered(version // 2 + 1).metadata, operation=("MERGE", "OPTIMIZE")[version % 2])
    assert last_commit(tmp_path) == newest_since(tmp_path, 0) == Found(2, numbered(2))


def numbered(number):
    return TableCommit("flights", {0: PartitionBooks(next=number)}, number=number)


def test_our_newest_commit_is_found_from_an_earlier_one_on(tmp_path):
    """Without a list of all that there are."""
    for version, metadata in enumerate([None, numbered(1).metadata, numbered(2).metadata, None]):
        write(tmp_path, version, metadata)
    assert newest_since(tmp_path, 1) == newest_since(tmp_path, 2) == Found(2, numbered(2))
    assert newest_since(tmp_path, 4) is None


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_commit_that_does_not_go_on_from_the_one_before_is_told(tmp_path, number):
    """It claims what the table does not have, or it is there twice."""
    write(tmp_path, 0, numbered(2).metadata)
    write(tmp_path, 1)
    write(tmp_path, 2, numbered(number).metadata)
    with pytest.raises(
        CorruptData, match=f"expected commit {number - 1} of its topic before commit {number}, found co"
    ):
        last_commit(tmp_path)
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()  # Delta has cleaned it up
    assert last_commit(tmp_path) == Found(2, numbered(number))


def test_a_table_without_a_commit_of_ours_has_nothing(tmp_path):
    assert last_commit(tmp_path) is None
    write(tmp_path, 0)
    assert last_commit(tmp_path) is None


def test_a_log_without_a_commit_is_no_table_yet(tmp_path):
    """A driver killed while it made its first table could not be started again: "is not a Delta table"."""
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / ".00000000000000000000.json.tmp").write_text("{}")
    assert not is_table(tmp_path)
    assert last_commit(tmp_path) is None


def test_a_position_that_was_cleaned_up_is_told_not_guessed(tmp_path):
    """To start at offset 0 would write every row twice."""
    write(tmp_path, 12)
    with pytest.raises(CorruptData, match=r"none since 00000000000000000012\.json") as error:
        last_commit(tmp_path)
    assert "filled anew" in error.value.hint


@pytest.mark.parametrize("damage", [lambda b: b.replace(b"mainstem", b"main\xff\xfetem"), lambda b: b[: len(b) // 2]])
def test_a_damaged_commit_is_corrupt_data(tmp_path, damage):
    """Bytes that are no UTF-8 are not msgspec's DecodeError: they ended the driver at every start."""
    write(tmp_path, 0, COMMIT.metadata, rows=0)
    (path,) = (tmp_path / "_delta_log").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptData, match=r"00\.json: expected a commit of a Delta table, found damaged") as error:
        last_commit(tmp_path)
    assert "filled anew" in error.value.hint


def test_a_table_that_does_not_go_back_to_its_first_commit_is_not_whole(tmp_path):
    """Its metadata claim everything: it was removed between two commits, and the second made it anew."""
    write(tmp_path, 0, TableCommit("flights", number=2).metadata)
    with pytest.raises(CorruptData, match=r"found commit 2: what came before is missing") as error:
        check_whole(tmp_path)
    assert "filled anew" in error.value.hint
    write(tmp_path, 1, TableCommit("flights", number=3).metadata)
    first = tmp_path / "_delta_log" / f"{0:020}.json"
    first.unlink()  # half of a removal
    with pytest.raises(CorruptData, match="neither it nor a checkpoint"):
        check_whole(tmp_path)
    (tmp_path / "_delta_log" / f"{1:020}.checkpoint.parquet").touch()  # in time Delta removes what that has
    check_whole(tmp_path)


@pytest.mark.parametrize("metadata", [None, TableCommit("flights").metadata, TableCommit("flights", number=1).metadata])
def test_a_table_is_whole_from_its_topics_first_commit_on(tmp_path, metadata):
    """Also from somebody else's, and from one of a release that did not count them."""
    write(tmp_path, 0, metadata)
    check_whole(tmp_path)


def test_the_metadata_of_a_commit_say_whose_they_are():
    assert '"mainstem":1' in TableCommit("flights").metadata


def restore(table, version, parameters):
    info = {"operation": "RESTORE", "operationParameters": parameters}
    (table / "_delta_log" / f"{version:020}.json").write_text(json.dumps({"commitInfo": info}, separators=(",", ":")))


@pytest.mark.parametrize("to", [2, "2"])  # Spark says a number, delta-rs a text
def test_a_table_that_was_restored_goes_on_from_what_it_was_restored_to(tmp_path, to):
    """Its rows went back, and its position did not: they never came again, and the audit balanced."""
    for version, metadata in enumerate([numbered(1).metadata, numbered(2).metadata, None, numbered(3).metadata]):
        write(tmp_path, version, metadata)
    restore(tmp_path, 4, {"version": to, "timestamp": None})
    assert last_commit(tmp_path) == newest_since(tmp_path, 3) == Found(1, numbered(2))
    write(tmp_path, 5, numbered(3).metadata)
    assert last_commit(tmp_path) == newest_since(tmp_path, 1) == Found(5, numbered(3))
    restore(tmp_path, 6, {"version": 4})  # which was restored itself
    assert last_commit(tmp_path) == Found(1, numbered(2))
    restore(tmp_path, 7, {"version": 5})
    write(tmp_path, 8)
    assert last_commit(tmp_path) == Found(5, numbered(3))


@pytest.mark.parametrize("parameters", [{"version": None, "timestamp": "2026-01-01"}, {"datetime": 7}, {"version": 2}])
def test_a_table_that_was_restored_to_nobody_knows_what_is_told(tmp_path, parameters):
    for number in (1, 2):
        write(tmp_path, number - 1, numbered(number).metadata)
    restore(tmp_path, 2, parameters)
    for look in (lambda: last_commit(tmp_path), lambda: newest_since(tmp_path, 1)):
        with pytest.raises(CorruptData, match=r"expected that 00000000000000000002\.json says which version") as error:
            look()
        assert "filled anew" in error.value.hint
    restore(tmp_path, 3, {"version": 0})
    assert last_commit(tmp_path) == Found(0, numbered(1))
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(CorruptData, match=r"none since 00000000000000000001\.json"):
        last_commit(tmp_path)
