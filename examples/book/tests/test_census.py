"""A census: whatever the period, and whatever order the journal is in, the population is what was born and has not
died.
"""

import random
from datetime import UTC, datetime, timedelta

NEW_YEAR = datetime(2025, 1, 1, tzinfo=UTC)
PERIODS = {
    "day": lambda day: day,
    "month": lambda day: day.replace(day=1),
    "year": lambda day: day.replace(month=1, day=1),
}


def some_entries():
    """Over two years, in the order in which they are entered; the last one is the earliest."""
    chance = random.Random(7)
    found = [
        {
            "kind": "birth" if chance.random() < 0.7 else "death",
            "region": chance.choice(["north", "south"]),
            "at": NEW_YEAR + timedelta(days=chance.choice([0, 1, 30, 31, 364, 365, 700]), hours=chance.randrange(24)),
        }
        for _ in range(59)
    ]
    return [*found, {"kind": "birth", "region": "north", "at": NEW_YEAR}]


def counted(entries, period_of):
    """(births, deaths, population) by region and period, one after the other."""
    found = {}
    for region, period in sorted({(each["region"], period_of(each["at"].date())) for each in entries}):
        kinds = [
            (each["kind"], period_of(each["at"].date()) == period)
            for each in entries
            if each["region"] == region and period_of(each["at"].date()) <= period
        ]
        births, deaths = (sum(each == (kind, True) for each in kinds) for kind in ("birth", "death"))
        population = sum(1 if kind == "birth" else -1 for kind, _ in kinds)
        found[region, period] = births, deaths, population
    return found


def check(job, unit):
    """At any time the table is what was entered by then."""
    entries, table = some_entries(), {}
    for start, end in [(0, 20), (20, 59), (59, 60)]:
        for row in job.feed(journal=entries[start:end]):
            table[row["region"], row[unit]] = row["births"], row["deaths"], row["population"]
        assert table == counted(entries[:end], PERIODS[unit])
    assert job.late == []


def test_the_population_of_each_day(mainstem_jobs):
    with mainstem_jobs.start("population_by_day") as job:
        check(job, "day")


def test_the_population_of_each_month(mainstem_jobs):
    with mainstem_jobs.start("population_by_month") as job:
        check(job, "month")


def test_the_population_of_each_year(mainstem_jobs):
    with mainstem_jobs.start("population_by_year") as job:
        check(job, "year")


def test_the_population_as_of_now(mainstem_jobs):
    entries, table = some_entries(), {}
    with mainstem_jobs.start("population") as job:
        for start, end in [(0, 20), (20, 60)]:
            table |= {row["region"]: row["population"] for row in job.feed(journal=entries[start:end])}
    last = {region: told[-1] for (region, _), told in counted(entries, PERIODS["year"]).items()}
    assert table == last
