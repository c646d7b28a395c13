"""The rows of a key come out in the order of their input, whatever a job does to them; what loses that is told.

The jobs run as a running version runs them: records of a real log, its sink, batches cut anywhere, and tried again.
"""

import itertools
import json
from collections import Counter
from random import Random
from textwrap import dedent
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mainstem.client.topics import ensure_topic
from mainstem.process.analysis import analyse
from mainstem.process.calling import call
from mainstem.process.order import with_position
from mainstem.process.outputs import JobOutput, Quarantine, records
from mainstem.process.project import load_project
from mainstem.process.reading import kafka_options, typed_rows
from mainstem.process.sink import BatchSink, JobIdentity, OutputTopic
from mainstem.registry import avro
from mainstem.registry.spark import TopicSchema, avro_schema
from mainstem.testing import _FEW_ROWS
from tests.support.properties import examples
from tests.support.records import committed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

HEAD = """\
from mainstem.process import changelog, stream, table, topic
from pyspark.sql import functions as F

events = topic("events", event_time="at")
others = topic("others", event_time="at")
regions = changelog("regions", key="name")
rest = topic("rest", key="name")
"""
COLUMNS = "name string, place int, n long, at timestamp, tags array<string>"
TYPES = {"events": COLUMNS, "others": COLUMNS, "regions": "name string, region string"}
KEPT = """
    @table(to="latest", key="region")
    def latest(events, regions):
        few = events.filter("n % 3 != 0").drop("_position").coalesce(1).hint("merge")
        return regions.orderBy("name").join(few, "name").select("region", "place", "n")

    @stream(to="halves", key="name")
    def halves(events):
        odd, even = events.select("name", "place", "n").filter("n % 2 = 1"), events.filter("n % 2 = 0")
        return even.select("name", "place", "n").unionByName(odd).repartition(3, "n")

    @stream(to="both", key="name")
    def both(events, others):
        return others.select("name", (F.col("place") + 10).alias("place"), "n").union(events.select("name", "place", "n"))

    @stream(to="parted", key="name", also=[rest])
    def parted(events):
        small = events.select("name", "place", "n").repartition(4)
        return small.filter("n % 4 < 2"), small.filter("n % 4 >= 2").selectExpr("name", "place", "n", "n * n AS square")

    @stream(to="asked", key="name")
    def asked(events, regions):
        return '''
            WITH known AS (SELECT name, region FROM regions WHERE region IS NOT NULL),
                 seen AS (SELECT e.name, place, n, region FROM events e JOIN known USING (name))
            SELECT name, place, n FROM seen UNION ALL SELECT region, place, n FROM seen
        '''

    @stream(to="tagged", key="tag")
    def tagged(events):
        return events.select(F.explode("tags").alias("tag"), "place", "n").repartition(2)

    @stream(to="melted", key="name")
    def melted(events):
        twice = events.select("name", "place", "n", (F.col("n") * 2).alias("twice")).repartition(5)
        return twice.unpivot(["name", "place", "n"], ["twice"], "what", "value")

    @stream(to="mapped", key="name")
    def mapped(events):
        same = lambda frames: frames
        place = "_position struct<partition:int,offset:bigint,timestamp:timestamp>"
        return events.select("name", "place", "n", "_position").mapInArrow(same, f"name string, place int, n long, {place}")
"""
NAMES = ["latest", "halves", "both", "parted", "asked", "tagged", "melted"]


def project_of(spark, directory, jobs):
    """A project with these jobs, and what `found(name)` says of one."""
    from pyspark.sql.types import StructType

    (directory / "mainstem.toml").touch()
    (directory / "jobs.py").write_text(HEAD + dedent(jobs))
    project = load_project(directory)

    def found(name):
        inputs = project.inputs[name]
        types = {each.parameter: StructType.fromDDL(TYPES[each.parameter]) for each in inputs}
        times = {each.parameter: project.topics[each.topic].event_time for each in inputs}
        return analyse(spark, project.jobs[name], inputs, types, times, directory)

    return SimpleNamespace(project=project, found=found, jobs=project.jobs)


@pytest.fixture(scope="module")
def kept(spark, tmp_path_factory):
    return project_of(spark, tmp_path_factory.mktemp("kept"), KEPT)


# -- what is said


@pytest.mark.parametrize("name", [*NAMES, "mapped"])
def test_a_position_need_not_be_kept_by_hand(kept, name):
    it = kept.found(name)
    assert (it.keeps_order, it.order_lost_by) == (True, None)
    assert "_position" not in it.output.fieldNames()


def test_a_union_of_whole_streams_keeps_it(spark, tmp_path):
    """What stands for a stream while a job is looked at was taken for rows without a position: a false alarm."""
    job = '@stream(to="out", key="name")\ndef job(events, others):\n    return events.unionByName(others)\n'
    assert project_of(spark, tmp_path, job).found("job").order_lost_by is None


LOST = [
    ("stream", 'events.select("name").mapInPandas(lambda frames: frames, "name string")',
     "mapInPandas: it makes new rows; give each `_position` of the row that it is made of"),
    ("stream", 'events.select("name").mapInArrow(lambda frames: frames, "name string")', "mapInArrow: it makes new rows"),
    ("stream", 'events.select("name").union(regions.select("name"))', "a union with rows that are of no stream"),
    ("stream", 'regions.join(events.select("name", "n"), "name", "left_semi")', "it gives no columns of the stream"),
    ("stream", 'events.select("name", "_position").unionByName(events.select("n"), allowMissingColumns=True)',
     "a union with rows that have no `_position`: keep it in each of its parts, or in none"),
    ("late", ('events.groupBy(F.struct("name", "n").alias("s"), F.window("at", "1 hour").alias("w")).count()'
              '.select("s.name", "w", F.col("w.start").alias("since"))'), "an aggregation by struct(name, n), window, which"),
    ("late", "'SELECT DISTINCT name, at FROM events'", "dropDuplicates([…]) keeps the order"),
    ("late", 'events.join(others.selectExpr("name", "at AS then"), "name")', "a join of two streams: a row comes out when"),
    ("late", 'events.groupBy("name", F.window("at", "1 hour")).count()', "an aggregation by window, which the key does not"),
    ("late", ('events.groupBy(F.upper("name").alias("name"), F.window("at", "1 hour").alias("w")).count()'
              '.select("name", F.date_trunc("day", "w.start").alias("day"))'), "an aggregation by window, which the key does not"),
    ("late", 'events.groupBy("name", F.window("at", "1 hour")).count().select("name", F.explode(F.array("count")).alias("x"))',
     "an aggregation whose rows are made into others"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "result", "lost"), LOST)
def test_what_loses_the_order_is_named(spark, tmp_path, kind, result, lost):
    late = ', watermark=("at", "10 minutes")' if kind == "late" else ""
    inputs = ", ".join(name for name in ("events", "others", "regions") if name in result)
    job = f'@stream(to="out", key="name"{late})\ndef job({inputs}):\n    return {result}\n'
    it = project_of(spark, tmp_path, job).found("job")
    assert not it.keeps_order
    assert lost in it.order_lost_by


@pytest.mark.parametrize(
    ("key", "result"),
    [
        ('["name", "since"]', ('events.groupBy("name", F.window("at", "1 hour", "20 minutes").alias("w")).count()'
                               '.filter("count > 1").select("name", F.col("w.start").alias("since"))')),
        ('["who", "day"]', ('events.groupBy(F.upper("name").alias("who"), F.window("at", "1 day")).count()'
                            '.select("who", "window.*").withColumnRenamed("end", "day")')),
        ('["name", "since"]', ("'SELECT name, window.start AS since, sum(n) AS n FROM events "
                               "GROUP BY name, window(at, \"1 hour\")'")),
        ('["name", "since"]', ('events.groupBy("name", F.session_window("at", "1 hour")).count()'
                               '.select("name", F.col("session_window.start").alias("since"), "count")')),
    ],
)  # fmt: skip
def test_an_aggregation_has_one_row_of_a_key_in_a_batch_where_the_key_names_its_group(spark, tmp_path, key, result):
    mark = 'watermark=("at", "10 minutes")'
    it = project_of(spark, tmp_path, f'@table(to="t", key={key}, {mark})\ndef job(events):\n    return {result}\n')
    assert it.found("job").order_lost_by is None


def test_totals_and_rows_without_their_doubles_keep_it_too(spark, tmp_path):
    it = project_of(spark, tmp_path, """
        @table(to="totals", key="name", watermark=("at", "10 minutes"), emit="changes")
        def totals(events):
            return events.groupBy("name").agg(F.sum("n").alias("n"))

        @stream(to="once", key="name", watermark=("at", "10 minutes"))
        def once(events):
            return events.dropDuplicatesWithinWatermark(["name", "n"]).select("name", "n")
    """)  # fmt: skip
    assert [it.found(name).order_lost_by for name in ("totals", "once")] == [None, None]


def test_of_several_topics_that_which_loses_it_is_named(spark, tmp_path):
    it = project_of(spark, tmp_path, """
        @stream(to="out", key="name", also=[rest])
        def job(events):
            return events.select("name"), events.select("name").mapInPandas(lambda frames: frames, "name string")
    """)  # fmt: skip
    assert it.found("job").order_lost_by.startswith("rest: mapInPandas: ")


def test_a_result_that_has_no_position_to_carry_stays_as_it_is(spark):
    rows = spark.createDataFrame([("a", 1)], "name string, n long").groupBy("name").count()
    assert with_position(rows) is rows


# -- what happens

RECORD = json.dumps({"type": "record", "name": "Event", "fields": [
    {"name": "name", "type": "string"}, {"name": "place", "type": "int"}, {"name": "n", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}}]})  # fmt: skip
PARTITIONS = 3
NUMBERS = itertools.count()
FAILS = RuntimeError("after all rows were written")


class Batch(NamedTuple):
    """What a batch reads of what is left of each partition, by how many tasks, and how often it is tried."""

    share: float
    splits: dict[str, str]
    directly: list[bool]  # which way the sink writes in each try; all but the last one fail


SPLITS = [{}, {"minPartitions": "7"}, {"maxRecordsPerPartition": "2"}]


def drawn(random):
    """Records as (partition, name, tags), and two batches, one of which is tried again: both ways of the sink."""
    given = [
        (random.randrange(PARTITIONS), random.choice("abc"), random.choices("xyz", k=random.randrange(4)))
        for _ in range(random.randrange(30, 80))
    ]
    way = random.random() < 0.5
    ways = random.sample([[not way], [way, not way]], 2)
    return given, [Batch(random.uniform(0.2, 0.8), random.choice(SPLITS), ways[0]), Batch(1, SPLITS[2], ways[1])]


class Log:
    """Topics of one example, and batches of a job on them."""

    def __init__(self, spark, connection, directory, job, inputs, given):
        self.spark, self.connection, self.job, self.inputs = spark, connection, job, inputs
        self.streams = [each for each in inputs if each.kind == "stream"]
        self.prefix = f"order-{next(NUMBERS)}"
        self.regions = spark.createDataFrame([("a", "x"), ("b", "y"), ("c", "x")], TYPES["regions"])
        self.ends = {}
        for each in self.streams:
            ensure_topic(connection, self.source(each), PARTITIONS)
            self.ends[each.parameter] = self._put(self.source(each), given)
        self.checkpoint = directory / self.prefix
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": self.prefix}))

    def source(self, each):
        return f"{self.prefix}-{each.parameter}"

    def _put(self, topic, given):
        producer, ends = Producer(self.connection.confluent(acks="all")), dict.fromkeys(range(PARTITIONS), 0)
        for place, name, tags in given:
            row = {"name": name, "place": place, "n": ends[place], "at": 1_700_000_000_000_000, "tags": tags}
            producer.produce(topic, key=name.encode(), value=avro.encode(1, RECORD, row), partition=place)
            ends[place] += 1
        assert producer.flush(60) == 0
        return ends

    def frames(self, start, end, **options):
        """What a batch has of each stream, read by as many tasks as `options` make of it."""
        frames = {each.parameter: self.regions for each in self.inputs if each.kind == "changelog"}
        for each in self.streams:
            topic = self.source(each)
            reader = self.spark.read.format("kafka").options(**kafka_options(self.connection), **options)
            first, last = (json.dumps({topic: offsets[each.parameter]}) for offsets in (start, end))
            raw = (
                reader.option("subscribe", topic).option("startingOffsets", first).option("endingOffsets", last).load()
            )
            schema = TopicSchema(topic, RECORD, 1, {1: RECORD})
            frames[each.parameter] = typed_rows(raw, schema, PARTITIONS, None, topic)
        return frames

    def results(self, start, end, **options):
        return call(self.job, self.frames(start, end, **options), self.checkpoint)

    def write(self, found, planned):
        outputs = [
            JobOutput(
                output, f"{self.prefix}.{output.topic}", output.kind, 2, 1, avro_schema(each.columns, output.topic)
            )
            for output, each in zip(self.job.outputs, found.results, strict=True)
        ]
        for each in outputs:
            ensure_topic(self.connection, each.topic, each.partitions)
        identity = JobIdentity(self.prefix, "1", str(self.checkpoint))
        sink = BatchSink(identity, self.connection, [OutputTopic(each.topic, each.partitions) for each in outputs])
        quarantine = Quarantine(self.connection, None, self.job, "1", outputs[0].topic)
        start = {name: dict.fromkeys(range(PARTITIONS), 0) for name in self.ends}
        sink.open(self.spark)
        for number, batch in enumerate(planned):
            end = {
                name: {p: start[name][p] + round((to - start[name][p]) * batch.share) for p, to in ends.items()}
                for name, ends in self.ends.items()
            }
            for tried, directly in enumerate(batch.directly, 1):
                results = map(with_position, self.results(start, end, **batch.splits))
                rows = records(self.job, tuple(results), outputs, quarantine, 0)
                self._write_batch(sink, rows, number, end, directly=directly, fails=tried < len(batch.directly))
            start = end
        sink.close()
        return outputs

    def _write_batch(self, sink, rows, number, end, *, directly, fails):
        def reads():
            if fails:
                raise FAILS
            return {}

        (self.checkpoint / "offsets" / str(number)).write_text("plan")
        ends = {name: {name: offsets} for name, offsets in end.items()}
        recount = (lambda: None) if directly else None
        if fails:
            with pytest.raises(RuntimeError, match=str(FAILS)):
                sink.write(rows, number, ends, reads=reads, recount=recount)
            sink.open(self.spark)
        else:
            sink.write(rows, number, ends, reads=reads, recount=recount)

    def wrote(self, output):
        """(key, row) of each record, in the order of their offsets."""
        found = committed(self.connection, output.topic)
        return [(each.key(), avro.decode(each.value(), lambda _: output.schema)) for each in found]


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", NAMES)
def test_no_row_of_a_key_comes_out_before_an_earlier_one(spark, log_connection, tmp_path_factory, kept, name):
    job, inputs, found = kept.jobs[name], kept.project.inputs[name], kept.found(name)
    session = spark.newSession()
    for key, value in (_FEW_ROWS | {"spark.sql.shuffle.partitions": "3"}).items():
        session.conf.set(key, value)

    # Numbers to draw from: hypothesis would begin with few rows, all of one key, and each example takes seconds.
    @settings(max_examples=examples(1), phases=[Phase.generate])  # a seed cannot be made smaller
    @given(st.integers(0, 2**32))
    def check(seed):
        given, planned = drawn(Random(f"{name} {seed}"))
        log = Log(session, log_connection, tmp_path_factory.mktemp("log"), job, inputs, given)
        outputs = log.write(found, planned)
        start = {name: dict.fromkeys(range(PARTITIONS), 0) for name in log.ends}
        for output, whole in zip(outputs, log.results(start, log.ends), strict=True):
            rows = log.wrote(output)
            columns = [field["name"] for field in json.loads(output.schema)["fields"]]
            expected = Counter(tuple(row) for row in whole.select(*columns).collect())
            assert Counter(tuple(row[name] for name in columns) for _, row in rows) == expected
            newest = {}
            for key, row in rows:
                assert newest.get((key, row["place"]), -1) <= row["n"]
                newest[key, row["place"]] = row["n"]

    check()
