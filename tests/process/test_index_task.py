"""The tasks' side of a local index: it follows its table, and is made anew where it cannot."""

import json
import multiprocessing
import time

import pytest
from structlog.testing import capture_logs

from mainstem.client.partitioner import partition_for
from mainstem.core import UserError
from mainstem.core.locks import DirectoryLock
from mainstem.process import Change, LocalIndex
from mainstem.process.index_task import Changes, KeptIndex, ListedHistory, Table


class Words(LocalIndex):
    """Rows in a file, a line each; the last of a key counts."""

    columns, returns = "id int, word string", "id int"

    def open(self, directory):
        self.file = directory / "rows.json"
        self.rows = json.loads(self.file.read_text()) if self.file.exists() else {}

    def apply(self, changes):
        for change in changes:
            if change.row is None:
                self.rows.pop(str(change.key["id"]), None)
            else:
                self.rows[str(change.key["id"])] = change.row["word"]
        self.file.write_text(json.dumps(self.rows))

    def process(self, row):
        return []


def put(number, word):
    return Change({"id": number}, {"id": number, "word": word})


HISTORY = [put(1, "a"), put(2, "b"), Change({"id": 1}, None), put(2, "c"), put(3, "d")]


def followed(directory, changes, index=None):
    index = index or Words()
    directory.mkdir(exist_ok=True)
    KeptIndex(index, directory, "words").follow(0, ListedHistory(tuple(changes), 12 * 3600 * 1000))
    return index.rows


def age(directory, hours):
    kept = json.loads((directory / "position").read_text())
    kept["at_ms"] -= hours * 3600 * 1000
    (directory / "position").write_text(json.dumps(kept))


def test_it_takes_over_what_its_table_has_had_since(tmp_path):
    taken = []

    class Counting(Words):
        def apply(self, changes):
            taken.extend(changes)
            super().apply(changes)

    for end in (2, 2, 3, 5):
        rows = followed(tmp_path / "0", HISTORY[:end], Counting())
    assert rows == {"2": "c", "3": "d"}
    assert taken == HISTORY


def test_many_changes_come_in_pieces_and_a_crash_between_them_is_gone_on_from(tmp_path):
    changes = [put(number % 700, str(number)) for number in range(2500)]

    class Crashes(Words):
        left = 2

        def apply(self, changes):
            self.left -= 1
            if self.left < 0:
                raise MemoryError
            super().apply(changes)

    with pytest.raises(MemoryError):
        followed(tmp_path / "0", changes, Crashes())
    assert json.loads((tmp_path / "0" / "position").read_text())["offset"] == 2000
    assert followed(tmp_path / "0", changes) == {str(each.key["id"]): each.row["word"] for each in changes}


@pytest.mark.parametrize("damage", ["index", "position", "no position", "ahead", "away", "apply"])
def test_it_is_made_anew_where_it_cannot_be_gone_on_from(tmp_path, damage):
    directory, index = tmp_path / "0", Words()
    followed(directory, HISTORY[:3])
    match damage:
        case "index":
            (directory / "index" / "rows.json").write_text("{")
        case "position":
            (directory / "position").write_text("[]")
        case "no position":
            (directory / "position").unlink()
            (directory / "index" / "rows.json").write_text('{"99": "never committed"}')
        case "ahead":
            assert followed(directory, HISTORY[:1]) == {"1": "a"}
        case "away":
            (directory / "index" / "rows.json").write_text('{"99": "gone, and forgotten"}')
            age(directory, 13)
        case "apply":

            class Refuses(Words):
                def apply(self, changes):
                    if "2" in self.rows and self.rows["2"] == "b":
                        raise OSError("no such file")
                    super().apply(changes)

            index = Refuses()
    with capture_logs() as logs:
        assert followed(directory, HISTORY, index) == {"2": "c", "3": "d"}
    told = [each["event"] for each in logs]
    assert told == ["index_made_anew"] * (damage in ("index", "away", "apply"))


def test_one_that_is_at_the_end_of_its_table_may_have_been_away_for_long(tmp_path):
    followed(tmp_path / "0", HISTORY)
    age(tmp_path / "0", 1000)
    with capture_logs() as logs:
        assert followed(tmp_path / "0", HISTORY) == {"2": "c", "3": "d"}
    assert logs == []


def test_what_a_new_index_cannot_do_is_an_error(tmp_path):
    class Never(Words):
        def open(self, directory):
            raise OSError("no")

    with pytest.raises(OSError, match=r"^no$"):
        followed(tmp_path / "0", HISTORY, Never())


def changes_of(partition, partitions=3):
    from pyspark.sql.types import StringType, StructField, StructType

    columns = StructType([StructField("id", StringType()), StructField("word", StringType())])
    return Changes(Table("words", ("id",), columns, columns), partition, partitions)


def test_of_each_key_the_last_change_counts():
    own = [key for key in map(str, range(100)) if partition_for(key.encode(), 3) == 1]
    changes = changes_of(1)
    changes.put({"id": own[0], "word": "a"})
    changes.put({"id": own[1], "word": "b"})
    changes.remove({"id": own[0]})
    changes.put({"id": own[1], "word": "c"})
    assert list(changes) == [({"id": own[0]}, True), ({"id": own[1], "word": "c"}, False)]


def test_what_belongs_to_another_partition_is_refused():
    other = next(key for key in map(str, range(100)) if partition_for(key.encode(), 3) == 2)
    changes = changes_of(1)
    assert not changes.owns({"id": other})
    for refused in (lambda: changes.put({"id": other, "word": "a"}), lambda: changes.remove({"id": other})):
        with pytest.raises(
            UserError, match=rf"key '{other}' of table words belongs to partition 2, this is the index of 1"
        ):
            refused()
    with pytest.raises(UserError, match="put: expected the columns id, word, found wrod"):
        changes.put({"id": other, "wrod": "a"})
    with pytest.raises(UserError, match="'id' is missing or null"):
        changes.remove({"word": "a"})


def _hold(directory, ready, seconds):
    lock = DirectoryLock(directory)
    ready.set()
    time.sleep(seconds)
    lock.release()


def test_one_task_waits_for_another_one(tmp_path):
    from mainstem.process.index_task import _locked

    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready, 1.0))
    holder.start()
    assert ready.wait(30)
    began = time.monotonic()
    with _locked(tmp_path):
        assert time.monotonic() - began > 0.5
    holder.join()
