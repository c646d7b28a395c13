"""Nexmark's events, its queries on Mainstem and what DuckDB makes of them agree, on a few events."""

import time
from itertools import pairwise

import numpy as np
import pytest

from bench.nexmark.drain import avro_rows, without_retracted
from bench.nexmark.engines import ENGINES, inputs_of
from bench.nexmark.events import CLOSERS, CLOSING_MS, DISORDER_MS, GAP_MS, generate, partition_of, rows
from bench.nexmark.fill import IDS, PROJECT, TOPICS, fill, prepare, schema_of
from bench.nexmark.oracle import COLUMNS, QUERIES, Oracle
from tests.support.jobs import driver_of

EVENTS = 20_000


@pytest.fixture(scope="module")
def events():
    return generate(EVENTS, rate=400)  # in 50 s: as many windows as a run has


def test_the_same_events_come_each_time(events):
    again = generate(EVENTS, rate=400)
    for kind, of_kind in events.kinds.items():
        assert np.array_equal(of_kind.at, again.kinds[kind].at)
        assert all(np.array_equal(of_kind.columns[name], again.kinds[kind].columns[name]) for name in of_kind.columns)


def test_of_fifty_events_one_is_a_person_and_three_are_auctions(events):
    counts = [len(events.kinds[kind]) - CLOSERS for kind in ("person", "auction", "bid")]
    assert counts == [EVENTS // 50, EVENTS // 50 * 3, EVENTS // 50 * 46]


def test_some_auctions_are_hot_and_some_events_a_little_late(events):
    bids = events.kinds["bid"]
    hot = bids.columns["auction"] % 100 == 0
    assert 0.45 < hot.mean() < 0.55
    late = np.maximum.accumulate(bids.at) - bids.at
    assert 0.05 < (late > 0).mean() < 0.2
    assert late.max() <= DISORDER_MS


def test_a_bid_is_of_about_200_bytes(events):
    import msgspec

    sizes = [len(msgspec.json.encode(row)) for row in rows("bid", events.kinds["bid"], 0, 100)]
    assert 180 < sum(sizes) / 100 < 220


def test_no_two_bids_of_a_bidder_are_a_session_s_gap_apart(events):
    bids = events.kinds["bid"]
    by_bidder = sorted(zip(bids.columns["bidder"].tolist(), bids.at.tolist(), strict=True))
    assert not any(one[0] == other[0] and other[1] - one[1] == GAP_MS for one, other in pairwise(by_bidder))


def test_what_closes_the_windows_is_in_every_partition(events):
    for topics in TOPICS.values():
        for topic, key in topics.items():
            last = events.kinds[topic.split(".")[1]]
            assert set(partition_of(last.columns[key][-CLOSERS:]).tolist()) == {0, 1}
            assert set(last.at[-CLOSERS:].tolist()) == {events.closing}
    assert events.closing - max(each.at[:-CLOSERS].max() for each in events.kinds.values()) > CLOSING_MS - 1000


def test_wrong_rows_are_told(events):
    oracle = Oracle(events)
    right = [{"auction": a, "price": p} for a, p in q2_by_hand(events)]
    assert oracle.compare("q2", right).equal
    assert oracle.compare("q2", [*right, right[0]]).surplus == 1
    found = oracle.compare("q2", right[1:])
    assert (found.missing, found.surplus) == (1, 0)
    assert "1 missing" in str(found)


def q2_by_hand(events):
    bids = events.kinds["bid"].columns
    return [pair for pair in zip(bids["auction"].tolist(), bids["price"].tolist(), strict=True) if pair[0] % 123 == 0]


def test_sessions_are_those_that_a_loop_finds(events):
    bids = events.kinds["bid"]
    sessions, before = [], (0, 0)
    for bidder, at in sorted(zip(bids.columns["bidder"].tolist(), bids.at.tolist(), strict=True)):
        if at == events.closing:
            continue
        if bidder != before[0] or at - before[1] > GAP_MS:
            sessions.append({"bidder": bidder, "start": at, "last": at, "bids": 0})
        sessions[-1] |= {"last": at, "bids": sessions[-1]["bids"] + 1}
        before = (bidder, at)
    assert Oracle(events).compare("q11", sessions).equal


def test_a_retracted_row_is_none():
    told = [{"key": 1, "n": 1, "diff": 1}, {"key": 1, "n": 2, "diff": 1}, {"key": 1, "n": 1, "diff": -1}]
    assert list(without_retracted(told, ("key", "n"))) == [{"key": 1, "n": 2}]


def test_every_engine_has_a_program_for_each_query_that_it_does_not_lack():
    import re

    for name, engine in ENGINES.items():
        if name != "mainstem":
            run = engine.run("q1", "r0", "127.0.0.1:1", PROJECT)
            module = run.commands[0][2].rpartition(".")[2]
            text = (PROJECT.parent / "rivals" / f"{module}.py").read_text()
            assert set(re.findall(r"^def (q\d+)\(", text, re.MULTILINE)) == set(QUERIES) - set(engine.lacks)
    assert inputs_of("q8", "json") == ("nexmark.person.json", "nexmark.auction.json")


@pytest.mark.spark
@pytest.mark.timeout(600)  # a whole Spark beside whatever else the machine does
def test_every_query_gives_what_duckdb_gives(events, spark, log_connection, live_registry, registry_url, tmp_path):
    ids = {kind: live_registry.register(f"nexmark.{kind}-value", schema_of(kind)) for kind in IDS}
    prepare(log_connection, ids)
    fill(log_connection.bootstrap, events, TOPICS["avro"], "avro", ids)
    oracle = Oracle(events)
    driver = driver_of(spark, PROJECT, log_connection, registry_url, tmp_path / "data")
    driver.start()
    try:
        left, until = set(QUERIES), time.monotonic() + 500
        found = {}
        while left and time.monotonic() < until:
            driver.step()
            assert not driver.retries.failed
            time.sleep(0.5)
            for query in sorted(left):
                found[query] = oracle.compare(query, avro_rows(log_connection, f"nexmark.{query}"))
                left -= {query} if found[query].equal else set()
        assert not left, {query: str(found[query]) for query in left}
    finally:
        driver.stop()


def test_the_columns_are_those_that_duckdb_gives(events):
    oracle = Oracle(events)
    for query, columns in COLUMNS.items():
        assert oracle.columns(query) == list(columns)


@pytest.mark.parametrize("program", ["bench.nexmark", "bench.nexmark.latency"])
def test_every_program_says_what_it_takes(program):
    import subprocess
    import sys

    from tests.support.repository import ROOT

    done = subprocess.run(
        [sys.executable, "-m", program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--engines" in done.stdout
