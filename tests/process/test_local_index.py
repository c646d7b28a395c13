"""A job with a local index, on a real log: what it keeps is what it has committed, whatever happens to the index."""

import random
import shutil
import sys
from collections import Counter

import pytest

from mainstem.client.topics import list_topics
from mainstem.core import UserError
from mainstem.process import LocalIndex, changelog, indexed, topic
from mainstem.process.imports import ship
from mainstem.process.project_config import load_job_configs
from tests.support.jobs import driver_of, put_rows, read_rows, run_until
from tests.support.records import committed
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures

JOBS = """
    import sqlite3
    from mainstem.process import LocalIndex, indexed
    from pyspark.sql import Row

    visits = changelog("SHOP.visits", key="customer")

    class Visits(LocalIndex):
        columns, returns = "customer string, times long, last long", "id long, customer string, times long"

        def open(self, directory):
            self._db = sqlite3.connect(directory / "visits.db")
            self._db.execute("create table if not exists visits (customer text primary key, times int)")
            self._now = {}

        def apply(self, changes):
            for change in changes:
                self._db.execute("delete from visits where customer = ?", (change.key["customer"],))
                if change.row is not None:
                    self._db.execute("insert into visits values (?, ?)", (change.row["customer"], change.row["times"]))
            self._db.commit()

        def process(self, row):
            who = row.customer
            if who not in self._now:
                found = self._db.execute("select times from visits where customer = ?", (who,)).fetchone()
                self._now[who] = found[0] if found else 0
            self._now[who] += 1
            if row.cents < 0:
                self.remove(customer=who)
                self._now[who] = 0
            else:
                self.put(customer=who, times=self._now[who], last=row.id)
                yield Row(id=row.id, customer=who, times=self._now[who])

        def close(self):
            self._db.close()

    @stream(to="SHOP.known", key="customer", also=[visits])
    def SHOP_known(orders):
        return indexed(visits, Visits(), by_key=orders)
"""


def expected(orders):
    """(id, times) of each order that is told, and the table."""
    told, times = {}, Counter()
    for each in orders:
        times[each["customer"]] += 1
        if each["cents"] < 0:
            del times[each["customer"]]
        else:
            told[each["id"]] = times[each["customer"]]
    return told, dict(times)


def test_an_index_goes_on_where_it_was_and_is_made_anew_where_it_is_lost_or_damaged(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    chance, known, visits = random.Random(5), f"{shop}.known", f"{shop}.visits"
    project = write_project(tmp_path / "project", shop, JOBS, f"[jobs.{shop}_known]\nmax_offsets_per_trigger = 7\n")
    few = {"settings": load_job_configs(project)}
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data", **few)
    drivers.append(driver)
    driver.start()
    sent = []

    def more(count):
        who = [f"customer {number}" for number in range(6)]
        rows = [order(len(sent) + at, chance.choice(who), 0, chance.choice([100, 100, 100, -1])) for at in range(count)]
        put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, rows, ("customer",))
        sent.extend(rows)
        told, table = expected(sent)
        run_until(drivers[-1], lambda: len(read_rows(log_connection, known)) >= len(told))
        assert {row["id"]: row["times"] for row in read_rows(log_connection, known)} == told
        assert len(read_rows(log_connection, known)) == len(told)
        return table

    more(30)
    (home,) = (tmp_path / "data" / "jobs").glob(f"{shop}_known@1")
    (of_topic,) = (home / "index").iterdir()
    assert {each.name for each in of_topic.iterdir()} == {"0", "1"}
    driver.stop()

    def again():
        drivers.append(driver_of(spark, project, log_connection, registry_url, tmp_path / "data", **few))
        drivers[-1].start()

    again()
    more(10)
    drivers[-1].stop()
    shutil.rmtree(home / "index")
    again()
    more(20)
    drivers[-1].stop()
    for file in (home / "index").rglob("visits.db"):
        file.write_bytes(b"no database" * 100)
    again()
    table = more(20)
    last = {message.key(): message.value() for message in committed(log_connection, visits)}
    assert {key.decode() for key, value in last.items() if value is not None} == table.keys()
    assert list_topics(log_connection)[visits].partitions == 2


def test_a_batch_that_fails_leaves_nothing_in_the_index(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    (tmp_path / "fails").touch()
    once = f"""\
            import pathlib
            if row.id == 4 and pathlib.Path({str(tmp_path / "fails")!r}).exists():
                raise ValueError("not today")
            who = row.customer
"""
    project = write_project(tmp_path / "project", shop, JOBS.replace("            who = row.customer\n", once))
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    first = [order(number, "ann", 0) for number in range(3)]
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, first, ("customer",))
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.known")) == 3)
    second = [order(number, "ann", 0) for number in range(3, 6)]
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, second, ("customer",))
    run_until(driver, lambda: bool(driver.retries.failed), refused=[f"{shop}_known@1"])
    (failure,) = driver.retries.failed.values()
    lines = (project / "jobs.py").read_text().split("\n")
    line = next(at for at, text in enumerate(lines, 1) if "not today" in text)
    assert failure.error == f"{project / 'jobs.py'}:{line}: ValueError: not today"
    (tmp_path / "fails").unlink()
    driver.stop()
    drivers.append(driver_of(spark, project, log_connection, registry_url, tmp_path / "data"))
    drivers[-1].start()
    run_until(drivers[-1], lambda: len(read_rows(log_connection, f"{shop}.known")) == 6)
    assert [row["times"] for row in sorted(read_rows(log_connection, f"{shop}.known"), key=lambda row: row["id"])] == [
        1, 2, 3, 4, 5, 6,
    ]  # fmt: skip


class Longest(LocalIndex):
    """Tells of a text that is longer than all before; keeps nothing but a number, in a file."""

    columns, returns = "id int, length int", "id int, text string"

    def open(self, directory):
        self.file = directory / "length"
        self.length = int(self.file.read_text()) if self.file.exists() else 0

    def apply(self, changes):
        self.length = max([self.length, *(change.row["length"] for change in changes)])
        self.file.write_text(str(self.length))

    def process(self, row):
        if len(row.text) > self.length:
            self.length = len(row.text)
            self.put(id=row.id, length=self.length)
            return [{"id": row.id, "text": row.text}]
        return []


lengths = changelog("lengths", key="id")


def test_in_a_test_the_function_is_called_with_rows_and_the_index_is_empty(spark):
    ship([sys.modules[__name__]])  # the workers find no tests
    rows = spark.createDataFrame([(1, "ab"), (2, "a"), (3, "abc")], "id int, text string").coalesce(1)
    results, changes = indexed(lengths, Longest(), by_key=rows)
    assert [row.asDict() for row in results.collect()] == [{"id": 1, "text": "ab"}, {"id": 3, "text": "abc"}]
    assert [row.asDict() for row in changes.collect()] == [
        {"id": 1, "length": 2, "_deleted": False},
        {"id": 3, "length": 3, "_deleted": False},
    ]


@pytest.mark.parametrize(
    ("table", "columns", "rows", "message"),
    [
        (topic("lengths"), "id int", {"by_key": "id int"}, "indexed: expected a declared changelog, and rows as"),
        (lengths, "id int", {}, "indexed: expected a declared changelog, and rows as by_key=… or to_all=…"),
        (
            lengths,
            "x int",
            {"by_key": "id int"},
            "indexed: Longest.columns: expected the key of lengths, id, found no id",
        ),
        (lengths, "id int", {"by_key": "x int"}, "indexed: by_key: expected the columns id, found no id"),
        (lengths, "id string", {"by_key": "id int"}, "indexed: by_key: column id is int, the index has string"),
    ],
)
def test_what_does_not_fit_is_told(spark, table, columns, rows, message):
    index = Longest()
    index.columns = columns
    with pytest.raises(UserError, match=f"^{message}"):
        indexed(table, index, **{name: spark.createDataFrame([], kind) for name, kind in rows.items()})


def test_a_row_without_a_key_is_told(spark):
    rows = spark.createDataFrame([(None, "ab")], "id int, text string")
    with pytest.raises(Exception, match=r"indexed: a row has no key \(id\) of table lengths"):
        indexed(lengths, Longest(), by_key=rows)[0].collect()


def test_an_index_is_changed_by_process_alone():
    with pytest.raises(UserError, match="put, remove and owns belong into process"):
        Longest().put(id=1, length=2)
