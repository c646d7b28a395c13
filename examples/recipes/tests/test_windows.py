"""Windows: what comes out of rows, and when."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def request(second, path="/", status=200, size=100, host="a"):
    return {"host": host, "path": path, "status": status, "bytes": size, "at": NOON + timedelta(seconds=second)}


def clock(minutes):
    return NOON + timedelta(minutes=minutes)


def test_each_request_counts_in_its_minute(mainstem_jobs):
    with mainstem_jobs.start("traffic_per_minute") as job:
        assert job.feed(requests=[request(0, size=1), request(59, size=3, status=500), request(60)]) == []
        (first,) = job.advance(NOON + timedelta(minutes=2))
        assert (first["requests"], first["bytes"], first["mean_bytes"], first["median_bytes"]) == (2, 4, 2, 2)
        assert (first["least_bytes"], first["most_bytes"], first["errors"]) == (1, 3, 1)
        assert first["p99_bytes"] == pytest.approx(1 + 0.99 * 2)
        assert job.feed(requests=[request(1)]) == []
        assert [row["at"] for row in job.late] == [NOON + timedelta(seconds=1)]
        (second,) = job.finish()
        assert (second["requests"], second["minute"]) == (1, clock(1))


def test_errors_of_the_last_five_minutes_are_told_every_minute(mainstem_jobs):
    with mainstem_jobs.start("errors_lately") as job:
        job.feed(requests=[request(30, status=500), request(90)])
        shares = {row["until"]: row["share"] for row in job.finish()}
    assert shares == {clock(1): 1, clock(2): 0.5, clock(3): 0.5, clock(4): 0.5, clock(5): 0.5, clock(6): 0}


def test_a_visit_ends_when_nothing_came_for_half_an_hour(mainstem_jobs):
    with mainstem_jobs.start("visits") as job:
        rows = [request(600, "/b"), request(0, "/a"), request(600 + 1801, "/c"), request(5, "/x", host="b")]
        told = job.feed(requests=rows) + job.finish()
    assert sorted((row["host"], row["requests"], row["entered_by"], row["left_by"]) for row in told) == [
        ("a", 1, "/c", "/c"), ("a", 2, "/a", "/b"), ("b", 1, "/x", "/x"),
    ]  # fmt: skip


def test_each_request_is_told_the_visit_that_it_belongs_to(mainstem_jobs):
    rows = [request(1800, "/b"), request(0, "/a"), request(5, "/x", host="b"), request(3601, "/c"), request(5401, "/d")]
    with mainstem_jobs.start("requests_of_visits") as job, mainstem_jobs.start("visits") as visits:
        told = job.feed(requests=rows[:3]) + job.feed(requests=rows[3:]) + job.finish()
        counted = visits.feed(requests=rows[:3]) + visits.feed(requests=rows[3:]) + visits.finish()
        assert job.late == visits.late == []
    second = timedelta(seconds=1)
    assert [(row["path"], row["visit"]) for row in told if row["host"] == "a"] == [
        ("/a", clock(0)), ("/b", clock(0)), ("/c", clock(60) + second), ("/d", clock(60) + second),
    ]  # fmt: skip
    assert Counter((row["host"], row["visit"]) for row in told) == {
        (row["host"], row["began"]): row["requests"] for row in counted
    }


def test_the_top_three_of_a_minute_are_ranked_by_a_second_job(mainstem_jobs):
    with mainstem_jobs.start("paths_per_minute") as counts, mainstem_jobs.start("top_paths") as top:
        counts.feed(requests=[request(n, path) for n, path in enumerate("aaabbbbccd")])
        counted = counts.finish()
        assert {row["path"]: row["requests"] for row in counted} == {"a": 3, "b": 4, "c": 2, "d": 1}
        top.feed(paths_per_minute=counted)
        (minute,) = top.finish()
        assert (minute["minute"], [each["path"] for each in minute["paths"]]) == (clock(0), ["b", "a", "c"])
