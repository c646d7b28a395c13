"""Versions that run are brought to one position, where their outputs end alike, as long as somebody wants it."""

import json
import os
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from mainstem.client.internal import PROGRESS
from mainstem.client.progress import read_marker
from mainstem.client.topics import end_offsets, ensure_topic
from mainstem.core.locks import DirectoryLock
from mainstem.process.landing import (
    ANSWER_FILE,
    LOCK,
    MOST_SECONDS,
    REQUEST_FILE,
    Lander,
    Landing,
    NotLanded,
    check_held,
    held_at_one_position,
    request_in,
)
from mainstem.process.planting import Stand
from mainstem.registry.reader import TypedReader
from tests.support.jobs import driver_of, put_rows, read_rows, run_until, say_end

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
EVENTS = json.dumps({"type": "record", "name": "Event", "fields": [
    {"name": "key", "type": "string"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]})  # fmt: skip
JOBS = """
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F

events = topic("landing.events")

@table(to="landing.landed_hourly", key=["key", "hour"], watermark=("at", "10 minutes"))
def landed_hourly(events):
    counts = events.groupBy("key", F.window("at", "1 hour")).agg(F.count("*").alias("n"))
    return counts.select("key", F.col("window.start").alias("hour"), "n")

@stream(to="landing.landed_copies", key="key")
def landed_copies(events):
    return events
"""


class Query:
    """Stands in for a version that runs."""

    def __init__(self, stand=None, error=None):
        self.stand, self.error, self.calls = stand, error, []

    def land(self, to):
        self.calls.append(to)
        if self.error:
            raise self.error
        return self.stand

    def release(self):
        self.calls.append("release")


def ask(home, landing):
    home.mkdir(parents=True, exist_ok=True)
    (home / REQUEST_FILE).write_text(json.dumps(landing))


def test_a_query_is_held_while_whoever_asks_lives(tmp_path):
    home = tmp_path / "jobs" / "job@1"
    lander, query = Lander(tmp_path, home), Query(Stand(4, {"a": {0: 7}}, 0, 0, True))
    assert lander.step(query) is False
    ask(home, {"id": "x"})
    assert lander.step(query) is False  # its writer was killed
    lock = DirectoryLock(tmp_path / "jobs", LOCK)
    assert request_in(tmp_path, home) == Landing("x")
    assert [lander.step(query) for _ in range(2)] == [True, True]
    assert query.calls == [None]
    ask(home, {"id": "y", "to": {"a": {"0": 9}}})
    assert lander.step(query) is True
    assert query.calls[1:] == [{"a": {0: 9}}]
    assert json.loads((home / ANSWER_FILE).read_text())["stand"]["batch"] == 4
    lock.release()
    assert [lander.step(query) for _ in range(2)] == [False, False]
    assert query.calls[2:] == ["release"]


def test_who_is_stopped_does_not_stop_the_jobs(tmp_path):
    home = tmp_path / "jobs" / "job@1"
    lander, query = Lander(tmp_path, home), Query(Stand(4, {"a": {0: 7}}, 0, 0, True))
    with DirectoryLock(tmp_path / "jobs", LOCK):
        ask(home, {"id": "x"})
        assert lander.step(query) is True
        long_ago = time.time() - MOST_SECONDS
        os.utime(home / REQUEST_FILE, (long_ago, long_ago))
        assert lander.step(query) is False
    assert query.calls == [None, "release"]
    check_held({"1": 4}, {"1": 4})
    with pytest.raises(NotLanded, match="version 1 was held for too long, and has gone on"):
        check_held({"1": 4}, {"1": 5})
    with pytest.raises(NotLanded, match="version 1 stands at batch 4, of which the log shows 3 at most"):
        check_held({"1": 4}, {"1": 3})


def test_what_goes_wrong_is_told_to_whoever_asks(tmp_path):
    home = tmp_path / "jobs" / "job@1"
    with DirectoryLock(tmp_path / "jobs", LOCK):
        ask(home, {"id": "x"})
        with pytest.raises(ValueError, match="no"):
            Lander(tmp_path, home).step(Query(error=ValueError("no")))
        assert json.loads((home / ANSWER_FILE).read_text())["error"] == "ValueError: no"
        Lander(tmp_path, home).refuse("topic a does not exist yet")
        assert json.loads((home / ANSWER_FILE).read_text())["error"] == "does not run: topic a does not exist yet"


def test_nobody_waits_for_ever_for_a_driver_that_does_not_run(tmp_path):
    (tmp_path / "jobs" / "job@1").mkdir(parents=True)
    with (
        pytest.raises(NotLanded, match="job job@1: no answer within 0 s"),
        held_at_one_position(tmp_path, {"job": ["1"]}, seconds=0),
    ):
        pass
    assert not (tmp_path / "jobs" / "job@1" / REQUEST_FILE).exists()


def test_who_gives_up_meanwhile_leaves_nothing_behind(tmp_path):
    """It took up to two minutes for each request until somebody looked whether it is still wanted."""
    (tmp_path / "jobs" / "job@1").mkdir(parents=True)

    class NoMore(Exception):
        pass

    def pause(seconds):
        assert (tmp_path / "jobs" / "job@1" / REQUEST_FILE).exists()
        raise NoMore

    with pytest.raises(NoMore), held_at_one_position(tmp_path, {"job": ["1"]}, seconds=5, pause=pause):
        pass
    assert not (tmp_path / "jobs" / "job@1" / REQUEST_FILE).exists()


class Drivers(threading.Thread):
    """Answers for versions whose queries stand where the test says."""

    def __init__(self, data, queries):
        super().__init__(daemon=True)
        self.landers = {query: Lander(data, data / "jobs" / key) for key, query in queries.items()}
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(0.01):
            for query, lander in self.landers.items():
                lander.step(query)


class Moving(Query):
    """Goes where it is told, unless it has read further meanwhile."""

    def __init__(self, basis):
        super().__init__()
        self.basis, self.overtakes = basis, 0

    def land(self, to):
        super().land(to)
        if to is not None:
            self.basis = to
            if self.overtakes:
                self.overtakes -= 1
                self.basis = {topic: {p: offset + 1 for p, offset in each.items()} for topic, each in to.items()}
        return Stand(1, self.basis, 70, 70, True)


def test_both_go_to_the_furthest_position(tmp_path):
    one, two = Moving({"a": {0: 5, 1: 2}}), Moving({"a": {0: 3, 1: 4}})
    two.overtakes = 1  # its driver was started again
    for key in ("job@1", "job@2"):
        (tmp_path / "jobs" / key).mkdir(parents=True)
    drivers = Drivers(tmp_path, {"job@1": one, "job@2": two})
    drivers.start()
    with held_at_one_position(tmp_path, {"job": ["1", "2"]}, seconds=30) as held:
        assert held["job"]["1"] == held["job"]["2"] == Stand(1, {"a": {0: 6, 1: 5}}, 70, 70, True)
        assert "release" not in (*one.calls, *two.calls)
    while "release" not in one.calls or "release" not in two.calls:
        pass
    drivers.over.set()
    drivers.join()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_versions_that_run_stop_at_one_position_and_go_on(spark, log_connection, registry_url, live_registry, tmp_path):
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    (project / "events.avsc").write_text(EVENTS)
    (project / "mainstem.toml").write_text(
        '[topics."landing.events"]\npartitions = 2\nkey = "key"\nschema = "events.avsc"\nevent_time = "at"\n'
        '[jobs.landed_hourly]\nevery = "100 milliseconds"\nmax_offsets_per_trigger = 40\n'
        '[jobs.landed_copies]\nevery = "100 milliseconds"\nmax_offsets_per_trigger = 30\n'
    )
    (project / "jobs.py").write_text(JOBS)
    versions = [(job, version) for job in ("landed_hourly", "landed_copies") for version in "12"]
    driver = driver_of(spark, project, log_connection, registry_url, data, jobs=versions)
    count = 0

    def put(number):
        nonlocal count
        rows = [{"key": f"k{n % 7}", "at": NOON + timedelta(minutes=n)} for n in range(count, count + number)]
        put_rows(log_connection, live_registry, "landing.events", EVENTS, rows, ("key",))
        count += number

    def marker(job, version):
        return read_marker(log_connection, job, version, decided=True)

    def ends(job, version):
        topic = f"landing.{job}" if version == "1" else f"landing.{job}.v{version}"
        with TypedReader(log_connection, topic) as records:
            return [(record.key, record.value) for record in records]

    ensure_topic(log_connection, "landing.events", 2)
    put(500)
    driver.start()
    try:
        run_until(driver, lambda: all(marker(*each) is not None for each in versions))
        for job in ("landed_hourly", "landed_copies"):
            put(100)
            found, seen, release = {}, threading.Event(), threading.Event()

            def compare(job=job, found=found, seen=seen, release=release):
                with held_at_one_position(data, {job: ["1", "2"]}) as held:
                    found |= held[job]
                    seen.set()
                    release.wait(60)

            thread = threading.Thread(target=compare)
            thread.start()
            run_until(driver, seen.is_set)
            assert found["1"].basis == found["2"].basis
            assert found["1"].closed == found["2"].closed == found["1"].watermark
            put(50)  # is not read while they are held
            for _ in range(3):
                driver.step()
            assert {marker(job, each).batch for each in "12"} == {found[each].batch for each in "12"}
            assert sorted(ends(job, "1"), key=str) == sorted(ends(job, "2"), key=str) != []
            release.set()
            run_until(driver, lambda t=thread: not t.is_alive())
        say_end(log_connection, "landing.events", int((NOON + timedelta(minutes=count)).timestamp() * 1000))
        for version in "12":
            topic = "landing.landed_hourly" if version == "1" else "landing.landed_hourly.v2"
            run_until(driver, lambda t=topic: sum(row["n"] for row in read_rows(log_connection, t)) == count)
        assert len(ends("landed_copies", "1")) == len(ends("landed_copies", "2")) == count
        with TypedReader(log_connection, PROGRESS) as records:
            batches = [record.value["batch"] for record in records if record.key == "landed_hourly@1"]
        assert batches == [*range(len(batches))]  # planted ones too: none is left out, none is there twice
        assert sum(end_offsets(log_connection, "landing.events").values()) == count
    finally:
        driver.stop()
