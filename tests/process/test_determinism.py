"""What `plan` says of a job's determinism is what Spark does when the same input is cut into batches otherwise.

The input lies in two partitions; a cut takes from both in either order, and ends batches anywhere. A job that is
prefix-deterministic gives the same rows of each key in the same order for all cuts. For each reason by which one is
batch-dependent there is an input with two cuts that give other rows; where that reason is absent from an input, as
where no row is late, all cuts give the same.
"""

from collections import Counter
from random import Random
from textwrap import dedent

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mainstem.process.analysis import LATE_ROWS, OF_PYTHON, OF_ROWS, ROWS_BETWEEN
from mainstem.testing import jobs_of
from tests.support.properties import examples

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COLUMNS = dict.fromkeys(("events", "others"), "name string, n long, at timestamp")
COLUMNS |= {"regions": "name string, region string", "prices": "name string, price long, since timestamp"}
JOBS = """
    from mainstem.process import as_of, changelog, stream, table, topic
    from pyspark.sql import functions as F

    events = topic("events")
    others = topic("others")
    regions = changelog("regions", key="name")
    prices = changelog("prices", key="name", history="since")
    LATE = ("at", "10 minutes")

    @stream(to="mapped", key="name")
    def mapped(events):
        odd, even = events.filter("n % 2 = 1"), events.filter("n % 4 = 0").selectExpr("name", "n * 2 AS n", "at")
        return odd.select("name", "n", "at").union(even).repartition(2)

    @stream(to="called", key="name")
    def called(events):
        return events.select("name", F.udf(lambda n: n + 1, "long")("n").alias("n")).filter("n > 3")

    @stream(to="clocked", key="name")
    def clocked(events):
        return events.withColumn("now", F.current_timestamp())

    @stream(to="chanced", key="name")
    def chanced(events):
        return events.withColumn("x", F.rand())

    @stream(to="sampled", key="name")
    def sampled(events):
        return events.sample(0.5, seed=7)

    @stream(to="joined", key="name")
    def joined(events, regions):
        return events.join(regions, "name", "left")

    @stream(to="priced", key="name")
    def priced(events, prices):
        return as_of(events, prices, on="name", time="at")

    @table(to="hourly", key=["name", "hour"], watermark=LATE)
    def hourly(events):
        counts = events.groupBy("name", F.window("at", "1 hour")).agg(F.sum("n").alias("n"))
        return counts.select("name", F.col("window.start").alias("hour"), "n")

    @table(to="hourly_changes", key=["name", "hour"], watermark=LATE, emit="changes")
    def hourly_changes(events):
        counts = events.groupBy("name", F.window("at", "1 hour")).agg(F.sum("n").alias("n"))
        return counts.select("name", F.col("window.start").alias("hour"), "n")

    @table(to="visits", key=["name", "since"], watermark=LATE)
    def visits(events):
        counts = events.groupBy("name", F.session_window("at", "5 minutes").alias("w")).agg(F.sum("n").alias("n"))
        return counts.select("name", F.col("w.start").alias("since"), "n")

    @table(to="totals", key="name", watermark=LATE, emit="changes")
    def totals(events):
        return events.groupBy("name").agg(F.sum("n").alias("n"))

    @stream(to="once", key="name", watermark=LATE)
    def once(events):
        return events.select("name", "n", "at").dropDuplicatesWithinWatermark(["name"])

    @stream(to="names", key="name", watermark=LATE)
    def names(events):
        return events.select("name", "at").dropDuplicatesWithinWatermark(["name"]).select("name")

    @stream(to="pairs", key="name", watermark=LATE)
    def pairs(events, others):
        theirs = others.selectExpr("name AS other", "n AS m", "at AS then")
        near = F.expr("name = other AND then BETWEEN at - INTERVAL 1 HOUR AND at + INTERVAL 1 HOUR")
        return events.select("name", "n", "at").join(theirs, near).select("name", "n", "m")

    @stream(to="counted", key="name", watermark=LATE)
    def counted(events):
        def count(key, frames, state):
            import pandas
            yield pandas.DataFrame({"name": [key[0]], "rows": [sum(len(frame) for frame in frames)]})
        per_name = events.groupBy("name")
        return per_name.applyInPandasWithState(count, "name string, rows long", "n long", "append", "NoTimeout")
"""
FIRST = "which of several rows with the same key is the first depends on how the input is cut into batches"
TABLE = "read at the position that was pinned with each batch"
REASONS = {
    "mapped": OF_ROWS,
    "called": OF_PYTHON,
    "clocked": "it asks for the time (current_timestamp)",
    "chanced": "it uses a function that gives another result each time",
    "sampled": "sample: which rows it takes depends on how the input is cut into batches",
    "joined": f"regions: {TABLE}",
    "priced": f"prices: {TABLE}",
    "hourly": f"an aggregation: {LATE_ROWS}",
    "hourly_changes": f"an aggregation: {ROWS_BETWEEN}; {LATE_ROWS}",
    "visits": f"an aggregation: {LATE_ROWS}",
    "totals": f"an aggregation: {ROWS_BETWEEN}",
    "once": f"dropDuplicatesWithinWatermark: {FIRST}; {LATE_ROWS}",
    "names": f"dropDuplicatesWithinWatermark: {LATE_ROWS}",
    "pairs": f"a join of two streams: {LATE_ROWS}",
    "counted": "a state function: it is called with what each batch has of a key",
}


@pytest.fixture(scope="module")
def jobs(spark, tmp_path_factory):
    directory = tmp_path_factory.mktemp("determinism")
    (directory / "mainstem.toml").touch()
    (directory / "jobs.py").write_text(dedent(JOBS))
    return jobs_of(directory, spark, columns=COLUMNS)


def run(jobs, name, batches):
    """What comes out for these batches, until nothing more does; and how many rows were late."""
    with jobs.start(name) as job:
        rows = [row for batch in batches for row in job.feed(**batch)]
        return rows + job.finish(), len(job.late)


def event(name, n, minutes=0, seconds=0):
    return {"name": name, "n": n, "at": f"2026-05-01T{12 + minutes // 60}:{minutes % 60:02}:{seconds:02}Z"}


def by_key(rows):
    found = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row)
    return found


def bag(rows):
    return Counter(tuple(sorted(row.items())) for row in rows)


def last(key):
    """The table that the rows make."""
    return lambda rows: {tuple(row[column] for column in key): row for row in rows}


@pytest.mark.parametrize("name", REASONS)
def test_each_job_has_its_class_and_the_reason(jobs, name):
    found = jobs._analysis(name)[0]
    prefix = REASONS[name] in (OF_ROWS, OF_PYTHON)
    assert found.determinism.value == ("prefix-deterministic" if prefix else "batch-dependent")
    assert found.reason == REASONS[name]


def cut(random, partitions):
    """A key lies in one partition here, as producers place it."""
    edges = {place: sorted(random.choices(range(len(rows)), k=2)) for place, rows in partitions.items()}
    batches = []
    for number in range(3):
        taken = []
        for place in random.sample(sorted(partitions), len(partitions)):
            rows, (first, second) = partitions[place], edges[place]
            taken += [rows[:first], rows[first:second], rows[second:]][number]
        batches.append({"events": taken})
    return batches


STAYS = {"mapped": by_key, "called": by_key, "hourly": bag, "visits": bag, "names": bag, "totals": last(["name"]),
         "hourly_changes": last(["name", "hour"])}  # fmt: skip


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", STAYS)
def test_what_is_promised_of_a_job_is_the_same_for_all_cuts(jobs, name):
    """Of the prefix-deterministic all; of the others what their reason leaves, from rows of which none is late."""

    # Numbers to draw from: hypothesis would begin with few rows, and each example takes seconds.
    @settings(max_examples=examples(1), phases=[Phase.generate])  # a seed cannot be made smaller
    @given(st.integers(0, 2**32))
    def check(seed):
        random = Random(f"{name} {seed}")
        rows = {
            place: [event(random.choice(keys), random.randrange(100), 55 + random.randrange(10)) for _ in range(12)]
            for place, keys in enumerate(("ab", "cd"))
        }
        whole, late = run(jobs, name, [{"events": [*rows[0], *rows[1]]}])
        assert (bool(whole), late) == (True, 0)
        parts, late = run(jobs, name, cut(random, rows))
        assert late == 0
        assert STAYS[name](parts) == STAYS[name](whole)

    check()


A, B = event("a", 1), event("b", 2)
MANY = [event("a", n, seconds=n) for n in range(40)]
HOURS = [event("a", 1), event("a", 2, 180), event("a", 4, 1)]  # the last one is late once the second was seen
NORTH = {"name": "a", "region": "north"}
DEAR = {"name": "a", "price": 9, "since": "2026-05-01T11:00:00Z"}


def each(rows):
    """Every row in a batch of its own."""
    return [{"events": [row]} for row in rows]


OTHER = {
    "clocked": ([{"events": [A]}], [{"events": [A]}]),
    "chanced": ([{"events": [A]}], [{"events": [A]}]),
    "sampled": ([{"events": MANY}], [{"events": MANY[:20]}, {"events": MANY[20:]}]),
    "joined": ([{"events": [A], "regions": [NORTH]}], [{"events": [A]}, {"regions": [NORTH]}]),
    "priced": ([{"events": [A], "prices": [DEAR]}], [{"events": [A]}, {"prices": [DEAR]}]),
    "hourly": ([{"events": HOURS}], each(HOURS)),
    "hourly_changes": ([{"events": HOURS}], each(HOURS)),
    "visits": ([{"events": HOURS}], each(HOURS)),
    "totals": ([{"events": MANY}], [*each(MANY[:2]), {"events": MANY[2:]}]),
    # One row in each of two partitions: either may be read first.
    "once": (each([event("a", 1), event("a", 2)]), each([event("a", 2), event("a", 1)])),
    "names": ([{"events": [HOURS[1], event("b", 4)]}], each([HOURS[1], event("b", 4)])),
    "pairs": (
        [{"events": [A, HOURS[1]], "others": [A, HOURS[1]]}],
        [{"events": [HOURS[1]], "others": [HOURS[1]]}, {"events": [A], "others": [A]}],
    ),
    "counted": ([{"events": MANY[:2]}], each(MANY[:2])),
}


@pytest.mark.parametrize("name", OTHER)
def test_for_each_reason_there_is_an_input_whose_cuts_give_other_rows(jobs, name):
    first, second = (run(jobs, name, batches)[0] for batches in OTHER[name])
    assert bag(first) != bag(second)


def test_every_job_that_is_called_batch_dependent_is_shown_to_be_so():
    assert {*OTHER} == {name for name, reason in REASONS.items() if reason not in (OF_ROWS, OF_PYTHON)}


@pytest.mark.parametrize(("name", "told"), [("joined", {"regions": [NORTH]}), ("priced", {"prices": [DEAR]})])
def test_a_join_with_a_table_that_does_not_move_is_the_same_for_all_cuts(jobs, name, told):
    whole, _ = run(jobs, name, [told, {"events": MANY}])
    parts, _ = run(jobs, name, [told, {"events": MANY[:7]}, {"events": MANY[7:8]}, {"events": MANY[8:]}])
    assert by_key(parts) == by_key(whole)
