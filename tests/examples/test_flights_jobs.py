"""The jobs of the flights project, each called with ten rows or so: plain functions of DataFrames."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mainstem.process import load_project

pytestmark = pytest.mark.spark

PROJECT = Path(__file__).parents[2] / "examples" / "flights"
NOON = datetime(2013, 1, 1, 12)
FLIGHT = (
    "scheduled_at timestamp, origin string, dest string, carrier string, flight int, tailnum string, dep_time int, "
    "dep_delay int, arr_delay int, air_time int, distance int, _position struct<partition:int,offset:bigint>"
)


@pytest.fixture(scope="module")
def jobs():
    return {name: job.function for name, job in load_project(PROJECT).jobs.items()}


def flights(spark, *rows):
    """Rows of (minutes after noon, tail number, departure delay or None)."""
    return spark.createDataFrame(
        [
            (NOON + timedelta(minutes=at), "JFK", "SJU", "B6", 700 + number, tail, None if delay is None else 1200 + delay,
             delay, delay, None if delay is None else 100, 500, (0, number))
            for number, (at, tail, delay) in enumerate(rows)
        ],
        FLIGHT,
    )  # fmt: skip


def rows(frame, *order):
    return [tuple(row) for row in frame.orderBy(*order).collect()]


def test_flights_get_what_is_known_of_them_and_nulls_for_the_rest(spark, jobs):
    planes = spark.createDataFrame(
        [("N1", 1999, "BOEING", "737", 140)], "tailnum string, year int, manufacturer string, model string, seats int"
    )
    airlines = spark.createDataFrame([("B6", "JetBlue Airways")], "carrier string, name string")
    airports = spark.createDataFrame([("JFK", "John F Kennedy Intl")], "faa string, name string")
    given = flights(spark, (0, "N1", 5), (1, "N2", None), (2, None, -3))

    found = jobs["flights_enriched"](given, planes, airlines, airports)

    assert rows(
        found.select("tailnum", "airline", "plane_year", "model", "seats", "origin_name", "dest_name"), "tailnum"
    ) == [
        (None, "JetBlue Airways", None, None, None, "John F Kennedy Intl", None),
        ("N1", "JetBlue Airways", 1999, "737", 140, "John F Kennedy Intl", None),
        ("N2", "JetBlue Airways", None, None, None, "John F Kennedy Intl", None),
    ]
    assert rows(found.select("flight", "cancelled", "_position.offset"), "flight") == [
        (700, False, 0), (701, True, 1), (702, False, 2),
    ]  # fmt: skip


def test_delays_per_origin_and_hour_are_exact(spark, jobs):
    given = flights(spark, *((10 * n, "N1", delay) for n, delay in enumerate((0, 10, 20, None, None, 40, 7))))
    enriched = given.selectExpr("*", "dep_time is null cancelled")

    assert rows(jobs["delays_hourly"](enriched), "hour") == [
        (
            "JFK",
            NOON,
            6,
            2,
            pytest.approx(70 / 6),  # cancelled ones count as 0
            40,
            pytest.approx(37.0),
        ),  # the 0.95 quantile of 0, 10, 20, 40 lies 0.85 of the way from 20 to 40
        ("JFK", NOON + timedelta(hours=1), 1, 0, 7.0, 7, 7.0),
    ]
    nobody_left = enriched.filter("cancelled")
    assert rows(jobs["delays_hourly"](nobody_left), "hour") == [("JFK", NOON, 2, 2, 0.0, None, None)]


def test_an_aircrafts_day_ends_after_more_than_six_hours_without_a_flight(spark, jobs):
    given = flights(spark, (0, "N1", 0), (360, "N1", 0), (721, "N1", None), (30, "N2", 0), (0, None, 0))
    assert rows(jobs["aircraft_days"](given), "tailnum", "first_departure") == [
        ("N1", NOON, NOON + timedelta(hours=6), 2, 1000, 200),
        ("N1", NOON + timedelta(minutes=721), NOON + timedelta(minutes=721), 1, 500, 0),
        ("N2", NOON + timedelta(minutes=30), NOON + timedelta(minutes=30), 1, 500, 100),
    ]


LINES = (
    '10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 100 "http://x/" "Mozilla/5.0"',
    r'10.0.0.1 - - [17/May/2015:12:35:03 +0200] "GET /\"b\" HTTP/1.1" 404 - "-" "-"',
    '10.0.0.1 - - [17/May/2015:11:05:04 +0000] "POST /c HTTP/1.1" 500 7 "-" "cut short',
    '10.0.0.2 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 304 - "-" "Mozilla/5.0"',
    "no line of this format",
    '10.0.0.2 - - [99/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 304 - "-" "-"',
)


def test_lines_become_requests_and_requests_become_visits(spark, jobs):
    lines = spark.createDataFrame(
        [(line, (0, n)) for n, line in enumerate(LINES)], "line string, _position struct<p:int,offset:long>"
    )
    requests = jobs["access_requests"](lines)

    at = datetime(2015, 5, 17, 10, 5, 3)
    assert rows(requests.drop("_position", "request"), "_position.offset") == [
        ("10.0.0.1", at, 200, 100, None),
        ("10.0.0.1", at + timedelta(minutes=30), 404, 0, None),
        ("10.0.0.1", at + timedelta(hours=1, seconds=1), 500, 7, None),
        ("10.0.0.2", at, 304, 0, None),
        (None, None, None, None, "no line of this format"),
        ("10.0.0.2", None, 304, 0, None),
    ]
    assert requests.filter("status = 404").first()["request"] == r"GET /\"b\" HTTP/1.1"

    assert rows(jobs["access_sessions"](requests.filter("at is not null")), "client", "started_at") == [
        ("10.0.0.1", at, at + timedelta(minutes=30), 2, 100, 1),
        ("10.0.0.1", at + timedelta(hours=1, seconds=1), at + timedelta(hours=1, seconds=1), 1, 7, 1),
        ("10.0.0.2", at, at, 1, 0, 0),
    ]
