"""Batches that the driver writes itself, and those that it leaves to Spark's workers after all."""

import random
import uuid

import pytest

from mainstem.client import Connection
from mainstem.client.topics import end_offsets, ensure_internal_topics, ensure_topic
from mainstem.process import sink as module
from mainstem.process.offsets import records_between
from mainstem.process.sink import BatchSink, JobIdentity, OutputTopic
from mainstem.process.sink_direct import MOST_BYTES, MOST_KEY_BYTES, MOST_ROWS
from tests.support.records import committed

pytestmark = pytest.mark.spark

SCHEMA = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>, _partition int, _offset long"
PARTITIONS = 3


@pytest.fixture
def connection(mainstem_log):
    connection = Connection(mainstem_log.bootstrap)
    ensure_internal_topics(connection)
    return connection


class Written:
    """Batches of one sink; `direct`: whether they are to be tried so."""

    def __init__(self, spark, connection, directory, *, direct=True):
        self.spark, self.connection, self.direct, self.recounts = spark, connection, direct, []
        self.topic = f"out-{uuid.uuid4().hex[:8]}"
        ensure_topic(connection, self.topic, PARTITIONS)
        self.checkpoint = directory / self.topic
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(f'{{"id": "{self.topic}"}}')
        identity = JobIdentity(self.topic, "v1", str(self.checkpoint))
        self.sink = BatchSink(identity, connection, [OutputTopic(self.topic, PARTITIONS)])
        self.sink.open(spark)

    def write(self, batch, rows, tasks=2):
        (self.checkpoint / "offsets" / str(batch)).write_text("plan")
        frame = self.spark.createDataFrame([(self.topic, *row) for row in rows], SCHEMA).repartition(tasks)
        recount = (lambda: self.recounts.append(batch)) if self.direct else None
        return self.sink.write(frame, batch, {"s": {"in": {0: batch + 1}}}, recount=recount)

    def records(self):
        found = committed(self.connection, self.topic)
        return [(each.partition(), each.key(), each.value(), each.headers()) for each in found]


@pytest.fixture
def written(spark, connection, tmp_path):
    written = Written(spark, connection, tmp_path)
    yield written
    written.sink.close()


def some_rows(seed, number):
    draw = random.Random(seed)
    keys = [None, b"", *(b"key-%d" % n for n in range(8))]
    headers = [None, [], [("a", b"1")], [("a", None), ("b", b"\xff")]]
    return [
        (draw.choice(keys), draw.choice([None, b"", b"%d" % n]), draw.choice(headers), n % 2, n) for n in range(number)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_records_and_the_books_are_those_that_workers_write(spark, connection, tmp_path, seed):
    rows, found = some_rows(seed, 300), []
    random.Random(seed).shuffle(rows)
    for direct in (False, True):
        with_its = Written(spark, connection, tmp_path, direct=direct)
        result = with_its.write(0, rows, tasks=3)
        with_its.sink.close()
        assert with_its.recounts == []
        by_partition = {n: [each for each in with_its.records() if each[0] == n] for n in range(PARTITIONS)}
        found.append((by_partition, result.outputs[with_its.topic], result.rows))
    assert found[0] == found[1]


def row(n, size=1, headers=None):
    return (b"k", b"x" * size, headers, 0, n)


MANY = {
    "rows of a task": [row(n) for n in range(MOST_ROWS + 1)],
    "a large value": [row(0), row(1, MOST_BYTES + 1)],
    "a large key": [row(0), (b"k" * (MOST_KEY_BYTES + 1), *row(1)[1:])],
    "large headers": [row(0), row(1, 1, [("h", b"x" * MOST_BYTES)])],
}


@pytest.mark.parametrize("what", MANY)
def test_what_is_too_much_is_written_once_by_workers_and_so_are_the_batches_after_it(written, monkeypatch, what):
    monkeypatch.setattr(module, "_BATCHES_AFTER_MANY", 2)
    written.write(0, [row(0)])
    assert written.write(1, MANY[what], tasks=1).rows == len(MANY[what])
    assert written.recounts == [1]
    written.write(2, MANY[what], tasks=1)
    assert written.recounts == [1]  # workers, without another look
    written.write(3, MANY[what], tasks=1)
    assert written.recounts == [1, 3]
    assert len(written.records()) == 1 + 3 * len(MANY[what])
    assert [value for _, _, value, _ in written.records()[1:3]] == [each[1] for each in MANY[what][:2]]


def test_as_many_as_it_takes(written):
    written.write(0, [row(n, headers=[("h", b"1")]) for n in range(MOST_ROWS)] + [row(0, MOST_BYTES)], tasks=2)
    assert written.recounts == []
    assert len(written.records()) == MOST_ROWS + 1


def test_nothing_is_written_of_a_batch_whose_rows_fail(written):
    frame = written.spark.sql(
        f"SELECT '{written.topic}' AS topic, null AS key, raise_error('mine') AS value, 0 AS _partition, 1L AS _offset"
    )
    with pytest.raises(Exception, match="mine"):
        written.sink.write(frame, 0, {}, recount=lambda: None)
    assert set(end_offsets(written.connection, written.topic).values()) == {0}


def test_how_many_records_a_batch_reads_at_most():
    start = {"orders": {"orders": {0: 5, 1: 7}}}
    end = {"orders": {"orders": {0: 9, 1: 7}}, "taxes": {"taxes": {0: 2}}}
    assert records_between(start, end) == 6
    assert records_between({}, end) == 18
