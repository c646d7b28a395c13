"""kill -9 of a driver, and of Python workers, amid batches of a job with a local index: it counts what it has read, and
counts nothing twice.
"""

import json
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import mainstem
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.registry.client import Registry
from tests.support import sink_driver
from tests.support.jobs import put_rows, read_rows
from tests.support.live import running_registry
from tests.support.sink_kills import Driver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

NUMBERS = json.dumps({"type": "record", "name": "Number", "fields": [
    {"name": "number", "type": "long"}, {"name": "lane", "type": "long"}]})  # fmt: skip
JOBS = """
import time
import rocksdict
from mainstem.process import LocalIndex, changelog, indexed, stream, topic
from pyspark.sql import Row

numbers = topic("numbers")
counts = changelog("counts", key="lane")


class Counts(LocalIndex):
    columns, returns = "lane long, count long", "number long, lane long, count long"

    def open(self, directory):
        self.db = rocksdict.Rdict(str(directory))
        self.now = {}

    def apply(self, changes):
        for change in changes:
            self.db[change.key["lane"]] = change.row["count"]
        self.db.flush()

    def process(self, row):
        time.sleep(0.002)  # so that a kill finds it at work
        count = self.now[row.lane] = self.now.get(row.lane, self.db.get(row.lane) or 0) + 1
        self.put(lane=row.lane, count=count)
        yield Row(number=row.number, lane=row.lane, count=count)

    def close(self):
        self.db.close()


@stream(to="counted", key="lane", also=[counts])
def counted(numbers):
    return indexed(counts, Counts(), by_key=numbers)
"""
SETTINGS = """
[topics.numbers]
partitions = 2
schema = "number.avsc"
key = "lane"

[topics.counts]
partitions = 3

[jobs.counted]
every = "200 milliseconds"
"""


def test_what_an_index_counts_is_exact_whatever_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    chance, sent, kills = random.Random(seed), [], Counter[str]()
    (project := tmp_path / "project").mkdir()
    (project / "jobs.py").write_text(JOBS)
    (project / "mainstem.toml").write_text(SETTINGS)
    (project / "number.avsc").write_text(NUMBERS)
    with mainstem.embedded(child=True) as log:
        connection = Connection(log.bootstrap)
        ensure_internal_topics(connection)
        ensure_topic(connection, "numbers", 2)
        with running_registry(connection) as registry:

            def put(count: int) -> None:
                rows = [{"number": len(sent) + at, "lane": chance.randrange(9)} for at in range(count)]
                put_rows(connection, Registry(registry), "numbers", NUMBERS, rows, ("lane",))
                sent.extend(rows)

            def started(number: int) -> Driver:
                places = (str(tmp_path / name) for name in ("data", f"driver-{number}"))
                config = sink_driver.Config(str(project), connection.bootstrap, registry, *places, tasks=2)
                driver = Driver(config, tmp_path / "drivers.log")
                driver.go(sink_driver.Settings(direct=chance.random() < 0.5, most=chance.choice((100, 500))))
                return driver

            put(200)
            for number in range(3):
                driver = started(number)
                try:
                    assert driver.wait(driver.committed.total), driver.failed
                    for _ in range(2):
                        put(chance.randrange(100, 300))
                        time.sleep(chance.uniform(0, 0.6))
                        kills["worker"] += kill_one(driver, chance)
                    put(200)
                    if number == 2:
                        done = lambda: len(read_rows(connection, "counted")) >= len(sent)  # noqa: E731
                        wait_until(done, "all is counted", seconds=240)
                    else:
                        time.sleep(chance.uniform(0, 0.6))
                        kills["driver"] += 1
                finally:
                    driver.end()
        found = sorted(read_rows(connection, "counted"), key=lambda row: row["count"])
        print(f"seed {seed}: {dict(kills)}, {len(found)} rows")
        assert Counter(row["number"] for row in found) == Counter(range(len(sent)))
        for lane in range(9):
            own = [row["number"] for row in sent if row["lane"] == lane]
            of_lane = [row for row in found if row["lane"] == lane]
            assert [(row["count"], row["number"]) for row in of_lane] == list(enumerate(own, 1))


def kill_one(driver: Driver, chance: random.Random) -> int:
    """A Python worker, if there is one."""
    workers = driver.workers()
    with suppress(psutil.NoSuchProcess):
        if workers:
            chance.choice(workers).kill()
            return 1
    return 0
