"""The sink on Spark: rows of a DataFrame, written once by tasks in Python workers."""

import json
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from mainstem.client import Connection, Security
from mainstem.client.partitioner import partition_for
from mainstem.client.progress import Written, read_marker
from mainstem.client.topics import end_offsets, ensure_internal_topics, ensure_topic
from mainstem.process.identity import used_topics
from mainstem.process.session import BadSparkSetting, check_rules
from mainstem.process.sink import BatchSink, JobIdentity, OutputTopic, SinkRefused
from mainstem.process.sink_claims import ClaimsServer
from mainstem.records import fingerprint_sum
from tests.support.records import committed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark
SCHEMA = "topic string, key binary, value binary"


@pytest.fixture(scope="module", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def connection(request):
    log = request.getfixturevalue("mainstem_log" if request.param == "embedded" else "kafka_broker")
    connection = Connection(log.bootstrap)
    ensure_internal_topics(connection)
    return connection


class Job:
    """A job with one input and, unless told otherwise, one output of four partitions."""

    def __init__(self, spark, connection, directory, *, directly):
        self.directly = directly
        self.recounted = 0
        self.spark, self.connection, self.name = spark, connection, f"job-{uuid.uuid4().hex[:8]}"
        self.source, self.output = f"{self.name}.in", f"{self.name}.out"
        ensure_topic(connection, self.source, 1)
        ensure_topic(connection, self.output, 4)
        self.checkpoint = directory / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": self.name}))
        self.sinks = []

    def open(self, outputs=None, **settings):
        identity = JobIdentity(self.name, "v1", str(self.checkpoint))
        sink = BatchSink(identity, self.connection, outputs or [OutputTopic(self.output, 4)], **settings)
        self.sinks.append(sink)
        sink.open(self.spark)
        return sink

    def write(self, sink, batch, rows, **settings):
        (self.checkpoint / "offsets" / str(batch)).write_text("plan")
        if self.directly:
            settings["recount"] = self.recount
        return sink.write(rows, batch, self.ends(batch), **settings)

    def recount(self):
        self.recounted += 1

    def ends(self, batch):
        return {"source": {self.source: {0: batch + 1}}}

    def rows(self, pairs, schema=SCHEMA):
        return self.spark.createDataFrame([(self.output, *pair) for pair in pairs], schema)


@pytest.fixture(params=["workers", "driver"])
def job(request, spark, connection, tmp_path):
    """Whose rows Spark's workers write, or the driver itself."""
    job = Job(spark, connection, tmp_path, directly=request.param == "driver")
    yield job
    for sink in job.sinks:
        sink.close()


def read(connection, topic):
    """(partition, key, value, headers) of every record that a read_committed reader sees, in the order of offsets."""
    found = committed(connection, topic)
    return [(message.partition(), message.key(), message.value(), message.headers()) for message in found]


def test_rows_go_where_kafkas_own_clients_would_put_them_and_the_books_agree(job):
    pairs = [(b"key-%d" % number, b"%d" % number) for number in range(500)]
    result = job.write(job.open(), 0, job.rows(pairs))
    found = read(job.connection, job.output)
    assert Counter((key, value) for _, key, value, _ in found) == Counter(pairs)
    assert all(partition == partition_for(key, 4) for partition, key, _, _ in found)
    assert (result.rows, result.skipped) == (500, False)
    for partition, output in result.outputs[job.output].items():
        own = [(key, value) for place, key, value, _ in found if place == partition]
        assert (output.count, output.hash) == (len(own), fingerprint_sum(own))


def test_nulls_and_headers_arrive_and_are_counted(job):
    rows = [(b"k", None, None), (None, b"v", []), (b"h", b"v", [("a", b"1"), ("b", None)])]
    schema = SCHEMA + ", headers array<struct<key: string, value: binary>>"
    result = job.write(job.open(), 0, job.rows(rows, schema))
    found = {(key, value): headers for _, key, value, headers in read(job.connection, job.output)}
    assert found == {(b"k", None): None, (None, b"v"): None, (b"h", b"v"): [("a", b"1"), ("b", None)]}
    assert sum(output.hash for output in result.outputs[job.output].values()) % 2**64 == fingerprint_sum(found)


def test_large_records_take_the_slow_path(job):
    pairs = [(b"k", b"x" * 70_000), (b"k", b"y" * 300_000), (b"k", b"z")]
    job.write(job.open(), 0, job.rows(pairs))
    assert sorted(value for _, _, value, _ in read(job.connection, job.output)) == sorted(value for _, value in pairs)


@pytest.mark.parametrize("tasks", [None, 1, 3])
@pytest.mark.parametrize("shuffles", [3, 8])
def test_rows_of_a_key_keep_the_order_of_the_input(job, shuffles, tasks):
    """Whatever the job did to their partitioning: the sink orders by (partition, offset) of the input."""
    rows = [
        (b"key-%d" % (offset % 7), b"%d:%06d" % (part, offset), part, offset)
        for part in (0, 1)
        for offset in range(400)
    ]
    frame = job.rows(rows, SCHEMA + ", _partition int, _offset long").repartition(shuffles)
    sink = job.open(most_tasks=tasks)
    job.write(sink, 0, frame)
    assert sink._in_one_task_each(frame, sink.outputs, 4).rdd.getNumPartitions() == (tasks or 4)
    by_key = {}
    for _, key, value, _ in read(job.connection, job.output):
        by_key.setdefault(key, []).append(value)
    assert len(by_key) == 7
    assert all(values == sorted(values) for values in by_key.values())


def test_several_outputs_are_one_transaction(job):
    dead_letters = f"{job.name}.dead"
    ensure_topic(job.connection, dead_letters, 2)
    sink = job.open([OutputTopic(job.output, 4), OutputTopic(dead_letters, 2)])
    frame = job.spark.createDataFrame([(job.output, b"a", b"1"), (dead_letters, b"a", b"2")], SCHEMA)
    result = job.write(sink, 0, frame)
    assert set(result.outputs) == {job.output, dead_letters}
    assert [value for _, _, value, _ in read(job.connection, dead_letters)] == [b"2"]


def test_rows_may_be_added_to_a_batch_once_its_own_are_written(job):
    """To partitions that none of them went to: what a batch has not taken in is known when it was read."""
    dead_letters = OutputTopic(f"{job.name}.dead", 2)
    ensure_topic(job.connection, dead_letters.topic, 2)
    sink = job.open([OutputTopic(job.output, 4), dead_letters])
    schema = SCHEMA + ", partition int"
    rows = [(job.output, b"a", b"1", None), (job.output, b"b", b"2", 3), (dead_letters.topic, b"a", b"3", 0)]
    late = job.spark.createDataFrame([(dead_letters.topic, b"a", b"4", 1)], schema)

    def reads():
        sink.add(late, [dead_letters])
        return {}

    result = job.write(sink, 0, job.spark.createDataFrame(rows, schema), reads=reads)
    assert (result.rows, set(result.outputs[dead_letters.topic])) == (4, {0, 1})
    assert [(place, value) for place, _, value, _ in read(job.connection, dead_letters.topic)] == [(0, b"3"), (1, b"4")]
    assert (3, b"b", b"2", None) in read(job.connection, job.output)


def test_rows_added_to_a_partition_that_was_written_end_the_batch(job):
    sink = job.open()
    with pytest.raises(Exception, match="another attempt has claimed it"):
        job.write(sink, 0, job.rows([(b"a", b"1")]), reads=lambda: sink.add(job.rows([(b"a", b"2")]), sink.outputs))
    assert read(job.connection, job.output) == []


def test_an_output_that_was_not_declared_fails_the_whole_batch(job):
    sink = job.open()
    frame = job.spark.createDataFrame([(job.output, b"a", b"1"), ("elsewhere", b"a", b"2")], SCHEMA)
    with pytest.raises(Exception, match="the job does not declare the output elsewhere"):
        job.write(sink, 0, frame)
    assert read(job.connection, job.output) == []


def test_rows_without_a_key_stay_with_their_neighbours(job):
    rows = [(None, b"%d:%d" % (part, offset), part, offset) for part in range(4) for offset in range(50)]
    job.write(job.open(), 0, job.rows(rows, SCHEMA + ", _partition int, _offset long"))
    found = read(job.connection, job.output)
    assert Counter(partition for partition, _, _, _ in found) == dict.fromkeys(range(4), 50)
    assert all(value.startswith(b"%d:" % partition) for partition, _, value, _ in found)


def test_an_empty_batch_leaves_the_outputs_alone(job):
    sink = job.open()
    result = job.write(sink, 0, job.rows([]))
    assert (result.rows, result.outputs) == (0, {})
    assert end_offsets(job.connection, job.output) == dict.fromkeys(range(4), 0)
    assert read_marker(job.connection, job.name, "v1").batch == 0


def test_a_batch_that_is_committed_is_run_for_its_state_but_not_written(job):
    job.write(job.open(), 0, job.rows([(b"a", b"1")]))
    ran = job.spark.sparkContext.accumulator(0)
    frame = job.rows([(b"a", b"1")])

    def count(batches):
        for batch in batches:
            ran.add(batch.num_rows)
            yield batch

    again = job.open()
    result = job.write(again, 0, frame.mapInArrow(count, SCHEMA))
    assert (result.skipped, result.again) == (True, {job.output: Written(1, fingerprint_sum([(b"a", b"1")]))})
    assert ran.value == 1
    assert len(read(job.connection, job.output)) == 1


def test_a_batch_is_evaluated_once(job):
    ran = job.spark.sparkContext.accumulator(0)

    def count(batches):
        for batch in batches:
            ran.add(batch.num_rows)
            yield batch

    job.write(job.open(), 0, job.rows([(b"a", b"1"), (b"b", b"2")]).mapInArrow(count, SCHEMA))
    assert (ran.value, job.recounted) == (2, 0)


def test_a_batch_that_fails_halfway_is_invisible_and_can_be_tried_again(job):
    sink, pairs = job.open(), [(b"key-%d" % number, b"%d" % number) for number in range(100)]

    def fail(batches):
        yield from batches
        raise ValueError("the user's function failed")

    with pytest.raises(Exception, match="the user's function failed"):
        job.write(sink, 0, job.rows(pairs).mapInArrow(fail, SCHEMA))
    sink.open(job.spark)
    job.write(sink, 0, job.rows(pairs))
    assert len(read(job.connection, job.output)) == 100
    stable, high = (end_offsets(job.connection, job.output, committed=committed) for committed in (True, False))
    assert stable == high


def test_all_of_the_jobs_own_work_is_done_before_anything_is_written(job, tmp_path, monkeypatch):
    """It lies in the shuffle's files: a job that computes for an hour has a transaction of seconds."""
    computing, go_on, claims, early = str(tmp_path / "computing"), str(tmp_path / "go"), [], []
    decide = ClaimsServer.decide
    monkeypatch.setattr(ClaimsServer, "decide", lambda server, claim: (claims.append(claim), decide(server, claim))[1])

    def slowly(batches):
        for number, batch in enumerate(batches):
            if number == 2:
                Path(computing).touch()
                while not Path(go_on).exists():
                    time.sleep(0.05)
            yield batch

    def look():
        try:
            wait_until(Path(computing).exists, "two rows are out, one is not")
            time.sleep(1)  # what would be claimed with the first row is claimed by now
            early.append(list(claims))
        finally:
            Path(go_on).touch()

    looker = threading.Thread(target=look)
    looker.start()
    job.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        rows = job.rows([(b"%d" % number, b"1") for number in range(3)])
        job.write(job.open(), 0, rows.coalesce(1).mapInArrow(slowly, SCHEMA))
    finally:
        job.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        looker.join()
    assert early == [[]]
    assert bool(claims) is not job.directly
    assert len(read(job.connection, job.output)) == 3


def test_what_somebody_else_has_written_is_noted_with_what_is_added_to_it(job):
    sink = job.open([OutputTopic(job.output, 4), OutputTopic(job.source, 1)])
    rows = job.spark.createDataFrame([(job.source, b"k", b"kept out")], SCHEMA)
    for batch in (0, 7):  # none of those between has found anything
        (job.checkpoint / "offsets" / str(batch)).write_text("plan")

        def reads():
            sink.add(rows, [OutputTopic(job.source, 1)])
            return {}

        ends = {job.output: {0: 5 + batch, 1: 0}}
        result = sink.note(batch, job.ends(batch), reads=reads, topics=lambda: {job.output: "its id"}, ends=ends)
        assert (result.batch, result.skipped) == (batch, False)
    marker = read_marker(job.connection, job.name, "v1")
    assert (marker.batch, marker.end_offsets, marker.ends[job.output]) == (7, job.ends(7), {0: 12, 1: 0})
    assert (marker.written.keys(), marker.topics) == ({job.source}, {job.output: "its id"})
    assert used_topics(marker) == {job.source, job.output}
    assert len(read(job.connection, job.source)) == 2


def test_a_newer_driver_stops_an_older_one(job):
    old = job.open()
    job.open()
    with pytest.raises(Exception, match=r"fenced|epoch|newer"):
        job.write(old, 0, job.rows([(b"a", b"1")]))
    assert read(job.connection, job.output) == []


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_runs(job):
    job.write(job.open(), 0, job.rows([(b"a", b"1")]))
    (job.checkpoint / "metadata").write_text(json.dumps({"id": "somebody else's"}))
    with pytest.raises(SinkRefused, match="belongs to checkpoint"):
        job.write(job.open(), 1, job.rows([(b"a", b"1")]))


def test_a_spark_that_may_run_a_task_twice_is_refused(spark):
    settings = dict(spark.sparkContext.getConf().getAll())
    check_rules(settings.get)
    too_often = {"spark.task.maxFailures": "4", "spark.stage.maxConsecutiveAttempts": "4", "spark.speculation": "true"}
    for name, value in too_often.items():
        with pytest.raises(BadSparkSetting, match=name):
            check_rules((settings | {name: value}).get)


def test_a_log_that_is_down_is_told(spark, tmp_path):
    nowhere = Connection("127.0.0.1:1", Security())
    sink = BatchSink(JobIdentity("job", "v1", str(tmp_path)), nowhere, [OutputTopic("t", 1)])
    with pytest.raises(Exception, match="no broker answers"):
        sink.open(spark)
