"""Jobs whose rows are written as they come: on a real log, by real Spark, stopped, killed and started again."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from mainstem.client.append import append
from mainstem.client.internal import job_group
from mainstem.client.progress import read_marker
from mainstem.client.topics import admin, end_offsets, ensure_topic
from mainstem.core import UserError
from mainstem.process.landing import held_at_one_position
from mainstem.process.project_config import load_job_configs
from mainstem.process.realtime import drop_torn_ends, last_ended
from mainstem.process.restore import restore
from mainstem.process.retire import retire
from mainstem.standalone.overview import job_state
from tests.support import processes
from tests.support.jobs import driver_of, put_rows, read_rows, run_until, say_end
from tests.support.realtime_driver import Config
from tests.support.shop import ORDERS, drivers, order, shop, write_project
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # a whole Spark beside whatever else the machine does
__all__ = ["drivers", "shop"]  # fixtures

JOBS = """
    def _paid(orders):
        kept = orders.filter("cents > 0").withColumn("_headers", F.expr(
            "array(named_struct('key', 'cents', 'value', cast(cast(cents AS string) AS binary)))"))
        return kept.selectExpr("id", "customer", "cents * 2 AS twice", "_headers")

    @stream(to="SHOP.fast", key="customer", latency="realtime")
    def FAST(orders):
        return _paid(orders)

    @stream(to="SHOP.slow", key="customer")
    def SLOW(orders):
        return _paid(orders)
"""


def jobs_of(name):
    """Names of their own: the log of a test session knows each job once."""
    return JOBS.replace("FAST", f"{name}_fast").replace("SLOW", f"{name}_slow")


def batch(name, text):
    return f'[jobs.{name}_fast]\nrealtime_batch = "{text}"\n'


def records_of(connection, topic):
    """All records of a topic: partition, key, value behind the schema's id, headers."""
    reader = Consumer(
        {"bootstrap.servers": connection.bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
    )
    ends = end_offsets(connection, topic)
    reader.assign([TopicPartition(topic, partition, 0) for partition in ends])
    found = []
    while sum(1 for _ in found) < sum(ends.values()):
        message = reader.poll(5)
        if message is None:
            break
        found.append((message.partition(), message.key(), message.value()[5:], tuple(message.headers() or ())))
    reader.close()
    return found


def encode(config):
    return msgspec.json.encode(config).decode()


def ids(connection, topic):
    return [row["id"] for row in read_rows(connection, topic)]


def committed(connection, group, topic):
    asked = admin(connection).list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    partitions = next(iter(asked.values())).result(10).topic_partitions
    return {each.partition: each.offset for each in partitions if each.topic == topic}


def test_rows_come_long_before_the_end_of_a_batch_and_are_those_of_the_same_function_without(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, jobs_of("early"), batch("early", "10 minutes"))
    driver = driver_of(
        spark, project, log_connection, registry_url, tmp_path / "data", settings=load_job_configs(project)
    )
    drivers.append(driver)
    driver.start()
    orders = f"{shop}.orders"
    first = [order(number, f"c{number % 7}", number, number % 5 * 10) for number in range(100)]
    put_rows(log_connection, live_registry, orders, ORDERS, first, ("customer",))
    run_until(driver, lambda: len(ids(log_connection, f"{shop}.fast")) == 80)

    took = []
    for number in range(100, 120):
        before, started = sum(end_offsets(log_connection, f"{shop}.fast").values()), time.monotonic()
        put_rows(
            log_connection, live_registry, orders, ORDERS, [order(number, f"c{number % 7}", number)], ("customer",)
        )
        while sum(end_offsets(log_connection, f"{shop}.fast").values()) == before:
            assert time.monotonic() < started + 60
            time.sleep(0.002)
        took.append(time.monotonic() - started)
    assert sorted(took)[10] < 1  # of a batch of 600 s; milliseconds, where nothing else runs
    put_rows(log_connection, live_registry, orders, ORDERS, [order(120, None, 120), order(121, None, 121)], ())
    run_until(
        driver, lambda: len(ids(log_connection, f"{shop}.fast")) == len(ids(log_connection, f"{shop}.slow")) == 102
    )

    fast, slow = (records_of(log_connection, f"{shop}.{name}") for name in ("fast", "slow"))
    assert Counter(fast) == Counter(slow)  # partition, key, value and headers of each
    keys = {key for _, key, _, _ in fast}
    assert len(keys) == 8
    for key in keys - {None}:  # in order
        assert [each for each in fast if each[1] == key] == [each for each in slow if each[1] == key]
    assert not driver.running["early_fast@1"].has_worked()


def test_what_has_ended_is_noted_and_a_restart_goes_on_there(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, jobs_of("noted"), batch("noted", "5 seconds"))
    data, orders, fast = tmp_path / "data", f"{shop}.orders", f"{shop}.fast"
    driver = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, orders, ORDERS, [order(n, f"c{n}", n) for n in range(50)], ("customer",))
    append(log_connection, orders, [(b"bad", b"no row"), (b"gone", None)], timeout_seconds=60)

    def marker():
        return read_marker(log_connection, "noted_fast", "1")

    def has_noted_all():
        return marker() is not None and marker().end_offsets == {orders: {orders: end_offsets(log_connection, orders)}}

    run_until(driver, has_noted_all)
    reads = marker().read["orders"][orders].values()
    assert [sum(getattr(each, what) for each in reads) for what in ("rows", "quarantined", "tombstones")] == [50, 1, 1]
    assert committed(log_connection, job_group("noted_fast", "1"), orders) == end_offsets(log_connection, orders)
    (bad,) = read_rows(log_connection, f"{fast}.quarantine")
    assert (bad["value"], bad["error"], bad["topic"]) == (b"no row", "undecodable", orders)
    (state,) = job_state(log_connection, "noted_fast")
    assert (state.lag, state.rows, state.read, state.undecodable) == (0, None, 52, 1)
    assert state.guarantee == "at least once: after a crash or a stop the rows of up to 5 seconds come again"
    run_until(driver, lambda: driver.running["noted_fast@1"].figures().get("batch_ms", 0) >= 5000)

    noted = marker()
    run_until(driver, lambda: last_ended(data / "jobs" / "noted_fast@1" / "checkpoint") > noted.batch + 1)
    assert marker() == noted  # batches that find nothing write nothing
    say_end(log_connection, orders, 1)
    run_until(driver, lambda: driver.heartbeats.statement(fast) is not None and driver.heartbeats.statement(fast).end)

    driver.stop()
    wide = json.loads(ORDERS)
    wide["fields"].append({"name": "note", "type": "string", "default": ""})
    rows = [order(n, f"c{n}", n) | {"note": "new"} for n in range(50, 60)]
    put_rows(log_connection, live_registry, orders, json.dumps(wide), rows, ("customer",))
    again = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
    drivers.append(again)
    again.start()
    run_until(again, has_noted_all)
    assert sorted(ids(log_connection, fast)) == list(range(60))  # nothing was under way when it was stopped
    # A schema that comes while it runs: it starts again with it.
    wide["fields"].append({"name": "more", "type": "string", "default": ""})
    rows = [order(n, f"c{n}", n) | {"note": "", "more": ""} for n in range(60, 70)]
    put_rows(log_connection, live_registry, orders, json.dumps(wide), rows, ("customer",))
    run_until(again, has_noted_all)
    assert set(ids(log_connection, fast)) == set(range(70))
    assert sum(each.rows for each in marker().read["orders"][orders].values()) == 70


UNION = """
    others = topic("SHOP.others", event_time="at")

    @stream(to="SHOP.fast", key="customer", latency="realtime")
    def FAST(orders, others):
        return "SELECT id, customer FROM orders UNION ALL SELECT -id, customer FROM others"
"""


def test_a_kill_loses_nothing_and_what_it_repeats_is_what_was_not_noted(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(
        tmp_path / "project", shop, UNION.replace("FAST", "killed_fast"), batch("killed", "5 seconds")
    )
    data, topics, fast = tmp_path / "data", (f"{shop}.orders", f"{shop}.others"), f"{shop}.fast"
    sent, number = Counter(), 0
    for topic in topics:
        ensure_topic(log_connection, topic, 1)
        put_rows(log_connection, live_registry, topic, ORDERS, [], ("customer",))  # its schema

    def noted():
        return read_marker(log_connection, "killed_fast", "1") is not None

    config = Config(str(project), log_connection.bootstrap, registry_url, str(data), str(tmp_path / "spark"))
    command = [sys.executable, "-c", "from tests.support.realtime_driver import main; main()", encode(config)]
    process = processes.start(command, stdout=subprocess.PIPE)
    try:
        jvm = Path("/proc", str(json.loads(process.stdout.readline())["ready"]), "cmdline")
        until = None
        while until is None or time.monotonic() < until:  # one batch has ended, and one is under way
            for sign, topic in zip((1, -1), topics, strict=True):
                number += 1
                rows = [order(number, f"c{number % 5}", 0)]
                put_rows(log_connection, live_registry, topic, ORDERS, rows, ("customer",))
                sent[sign * number] += 1
            time.sleep(0.1)
            if until is None and noted():
                until = time.monotonic() + 2
    finally:
        processes.stop(process, signal_number=signal.SIGKILL)
        process.stdout.close()
    wait_until(lambda: not jvm.exists() or not jvm.read_bytes(), "the end of the JVM")
    ends = read_marker(log_connection, "killed_fast", "1").end_offsets
    behind = {topic: sum(ends[topic][topic].values()) for topic in topics}
    repeated = sum(sum(end_offsets(log_connection, topic).values()) - behind[topic] for topic in topics)

    driver = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
    drivers.append(driver)
    driver.start()
    ends = {topic: {topic: end_offsets(log_connection, topic)} for topic in topics}
    run_until(driver, lambda: read_marker(log_connection, "killed_fast", "1").end_offsets == ends)
    found = Counter(ids(log_connection, fast))
    assert found.keys() == sent.keys()
    assert sum(found.values()) - sum(sent.values()) <= repeated
    books = read_marker(log_connection, "killed_fast", "1").read
    read = sum(each.rows for topics in books.values() for parts in topics.values() for each in parts.values())
    assert read == sum(sent.values())  # counted once each


def test_it_starts_only_where_there_is_room_and_others_run_beside_it(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, jobs_of("roomy"), f'[topics."{shop}.wide"]\npartitions = 8\n')
    (project / "jobs.py").write_text(
        (project / "jobs.py").read_text()
        + dedent(f"""
            wide = topic("{shop}.wide", schema="orders.avsc")

            @stream(to="{shop}.from_wide", key="customer", latency="realtime")
            def roomy_wide(wide):
                return wide.select("customer")
        """)
    )
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "a", 0)], ("customer",))
    written = [f"{shop}.fast", f"{shop}.slow"]
    run_until(driver, lambda: all(ids(log_connection, topic) == [1] for topic in written), refused=["roomy_wide@1"])
    failure = driver.retries.failed["roomy_wide@1"]
    assert "(roomy_fast@1 2, roomy_wide@1 8)" in failure.error
    assert "expected room for 11 tasks at a time, found 8" in failure.error
    assert 'set master = "local[11]"' in failure.hint
    assert not (tmp_path / "data" / "jobs" / "roomy_wide@1" / "job.json").exists()


def test_it_is_held_by_nobody_and_stops_when_it_is_retired_and_comes_back_from_the_log(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, jobs_of("ended"), batch("ended", "5 seconds"))
    data, orders, key = tmp_path / "data", f"{shop}.orders", "ended_fast@1"
    driver = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, orders, ORDERS, [order(n, "a", 0) for n in range(9)], ("customer",))

    def noted():
        marker = read_marker(log_connection, "ended_fast", "1")
        return marker is not None and marker.end_offsets == {orders: {orders: end_offsets(log_connection, orders)}}

    run_until(driver, noted)
    told = r'job ended_fast@1: latency="realtime": expected a version that can be held'
    with pytest.raises(UserError, match=told), held_at_one_position(data, {"ended_fast": ["1"]}):
        pass
    with pytest.raises(
        UserError, match=r'job ended_fast@1: latency="realtime": expected a job that is run over slices'
    ):
        driver.bind("ended_fast")
    driver.step()
    assert key in driver.running

    driver.stop()
    checkpoint = data / "jobs" / key / "checkpoint"
    last = last_ended(checkpoint)
    shutil.rmtree(checkpoint)
    again = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
    drivers.append(again)
    again.start()
    assert "`mainstem job restore ended_fast`" in again.retries.failed[key].hint
    again.stop()
    restored = restore(log_connection, data / "jobs" / key, "ended_fast", "1")
    put_rows(log_connection, live_registry, orders, ORDERS, [order(n, "a", 0) for n in range(9, 12)], ("customer",))
    # A power cut: the end of the last batch is torn, and one is there of which nothing else is.
    for name, torn in ((restored.batch, b"\0\0"), (last + 9, b'v1\n{"nextBatchWatermarkMs":0}')):
        (checkpoint / "commits" / str(name)).write_bytes(torn)
    drop_torn_ends(checkpoint)
    assert last_ended(checkpoint) == -1
    third = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
    drivers.append(third)
    third.start()
    run_until(third, noted, 150)
    assert set(ids(log_connection, f"{shop}.fast")) == set(range(12))
    read = read_marker(log_connection, "ended_fast", "1").read["orders"][orders]
    assert sum(each.rows for each in read.values()) == 12

    (project / "mainstem.toml").write_text((project / "mainstem.toml").read_text() + 'version = "2"\n')
    retire(log_connection, data, "ended_fast", "1", project)
    third.step()
    assert key not in third.running
    before = end_offsets(log_connection, f"{shop}.fast")
    put_rows(log_connection, live_registry, orders, ORDERS, [order(13, "a", 0)], ("customer",))
    run_until(third, lambda: 13 in ids(log_connection, f"{shop}.slow"))
    assert end_offsets(log_connection, f"{shop}.fast") == before


def test_it_reaches_the_end_of_what_is_written_in_transactions(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """Spark says of a batch that it ends behind the last record, and the marker of its transaction lies behind that."""
    chain = """
        @stream(to="SHOP.slow", key="customer")
        def chain_slow(orders):
            return orders.select("id", "customer")

        @stream(to="SHOP.fast", key="customer", latency="realtime")
        def chain_fast(chain_slow):
            return chain_slow
    """
    project = write_project(tmp_path / "project", shop, chain, '[jobs.chain_fast]\nrealtime_batch = "5 seconds"\n')
    data, orders, slow = tmp_path / "data", f"{shop}.orders", f"{shop}.slow"

    def has_read(number):
        marker = read_marker(log_connection, "chain_fast", "1")
        read = sum(each.rows for each in marker.read["chain_slow"][slow].values()) if marker else 0
        return read == number and marker.end_offsets == {slow: {slow: end_offsets(log_connection, slow)}}

    for run in range(2):
        driver = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
        drivers.append(driver)
        driver.start()
        for step in range(2):
            first = 10 * (2 * run + step)
            rows = [order(number, f"c{number}", 0) for number in range(first, first + 10)]
            put_rows(log_connection, live_registry, orders, ORDERS, rows, ("customer",))
            run_until(driver, partial(has_read, first + 10), 150)
        driver.stop()
    assert sorted(ids(log_connection, f"{shop}.fast")) == list(range(40))
    say_end(log_connection, orders, 1)
    driver = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
    drivers.append(driver)
    driver.start()
    run_until(driver, lambda: driver.heartbeats.statement(f"{shop}.fast") is not None, 150)
    assert job_state(log_connection, "chain_fast")[0].lag == 0


def test_what_it_fails_with_is_told_with_its_line_and_others_go_on(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    failing = """
        @stream(to="SHOP.fast", key="customer", latency="realtime")
        def failing_fast(orders):
            return orders.withColumn("share", 100 / F.col("cents"))

        @stream(to="SHOP.slow", key="customer")
        def failing_slow(orders):
            return orders
    """
    project = write_project(tmp_path / "project", shop, failing)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    rows = [order(1, "a", 0), order(2, "a", 0, cents=0), order(3, "a", 0)]
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, rows, ("customer",))
    run_until(driver, lambda: driver.retries.failed and len(ids(log_connection, f"{shop}.slow")) == 3)
    assert driver.retries.failed.keys() == {"failing_fast@1"}
    error = driver.retries.failed["failing_fast@1"].error
    assert error.startswith(f"{project / 'jobs.py'}:")
    assert "DIVIDE_BY_ZERO" in error
