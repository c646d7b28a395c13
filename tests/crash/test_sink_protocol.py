"""The sink's protocol, killed at every step, in plain text and over TLS and SASL: a read_committed reader counts what
is lost, duplicated or torn.

Also: a checkpoint rolled back, a task attempted twice, a consumer group reset, a batch longer than the transaction
timeout, a driver that was stopped past the fence of its successor. Leaders and coordinators move under the transactions
in tests/client/test_transaction.py, and a leader is killed under the whole demo in tests/e2e; both on Apache Kafka.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as ConfluentPartition

import mainstem
from mainstem.client import Connection, Security
from mainstem.client.append import append
from mainstem.client.cluster import Cluster
from mainstem.client.internal import job_group
from mainstem.client.progress import Marker, read_marker
from mainstem.client.topics import admin, end_offsets, ensure_internal_topics, ensure_topic
from tests.support import sink_engine
from tests.support.certificates import Authority
from tests.support.kafka_cluster import KafkaCluster
from tests.support.records import committed

RECORDS = 240  # of one input partition; 50 per batch: 5 batches
OUTPUTS = 3
ENGINE = "from tests.support.sink_engine import main; main()"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def older_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker whose transactions are as before Kafka 4."""
    with KafkaCluster(1, tmp_path_factory.mktemp("kafka"), features={"transaction.version": 1}) as cluster:
        yield cluster


LOGS = {"embedded": "mainstem_log", "kafka": "kafka_broker", "transactions_v1": "older_kafka"}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.kafka] * (name != "embedded")) for name in LOGS]
)
def connection(request: pytest.FixtureRequest) -> Connection:
    log = request.getfixturevalue(LOGS[request.param])
    connection = Connection(log.bootstrap)
    ensure_internal_topics(connection)
    assert asyncio.run(transaction_version(connection)) == (1 if request.param == "transactions_v1" else 2)
    return connection


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """To a log that listens with TLS and SASL only, as a user whose password it has as SCRAM's."""
    authority = Authority(tmp_path_factory.mktemp("secured"))
    certificate, key = map(str, authority.issue("log"))
    files = {"certificate_file": certificate, "key_file": key}
    settings = {"protocol": "SASL_SSL", "sasl_enabled_mechanisms": ["SCRAM-SHA-256"], "users": {"ada": "secret"}}
    with mainstem.embedded(broker=settings | files) as log:
        security = Security("SASL_SSL", "SCRAM-SHA-256", "ada", "secret", str(authority.file))
        connection = Connection(log.bootstrap, security)
        ensure_internal_topics(connection)
        yield connection


async def transaction_version(connection: Connection) -> int:
    cluster = Cluster(connection)
    await cluster.open()
    await cluster.close()
    return cluster.features["transaction.version"]


class Bench:
    """A job with its own input, output and checkpoint, and the checker of its output."""

    def __init__(self, connection: Connection, directory: Path, records: int = RECORDS) -> None:
        self.connection = connection
        self.records = 0
        self.job = f"job-{uuid.uuid4().hex[:8]}"
        self.source, self.output = f"{self.job}.in", f"{self.job}.out"
        self.checkpoint = directory / "checkpoint"
        ensure_topic(connection, self.source, 1)
        ensure_topic(connection, self.output, OUTPUTS)
        self.put(records)

    def put(self, records: int) -> None:
        numbers = range(self.records, self.records + records)
        append(self.connection, self.source, [(b"key-%d" % (number % 17), b"%d" % number) for number in numbers])
        self.records = numbers.stop

    def config(self, **settings: Any) -> sink_engine.Config:
        settings = {"batches": 100, "output_partitions": OUTPUTS} | settings
        settings["security"] = self.connection.security
        return sink_engine.Config(
            self.connection.bootstrap, str(self.checkpoint), self.job, self.source, self.output, **settings
        )

    def start(self, **settings: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", ENGINE, msgspec.json.encode(self.config(**settings)).decode()]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *, fails: str = "", **settings: Any) -> list[dict[str, Any]]:
        """Run the engine to its end; `fails`: it must fail with this text, or be killed."""
        process = self.start(**settings)
        out, err = process.communicate(timeout=300)
        if fails == "killed":
            assert process.returncode == -signal.SIGKILL, (process.returncode, err)
        elif fails:
            assert process.returncode == 1, (process.returncode, out)
            assert fails in err, err
        else:
            assert process.returncode == 0, err
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]  # others are of its log

    def visible(self) -> list[tuple[int, int]]:
        """(input offset, batch) of every record that a read_committed reader sees."""
        return [(offset, batch) for offset, batch, _ in self.read()]

    def read(self) -> list[tuple[int, int, int]]:
        values = [
            (message.value().split(b":"), message.partition()) for message in committed(self.connection, self.output)
        ]
        return [(int(offset), int(batch), partition) for (_, offset, batch), partition in values]

    def check(self) -> Marker:
        """Every input record is in the output once, in the batch that was planned for it; the books balance."""
        found, planned_batch = self.read(), self.planned_batches()
        copies = Counter(offset for offset, _, _ in found)
        lost = [offset for offset in range(self.records) if offset not in copies]
        duplicated = [offset for offset, count in copies.items() if count > 1]
        torn = [(offset, batch) for offset, batch, _ in found if batch != planned_batch(offset)]
        assert (lost, duplicated, torn) == ([], [], [])
        marker = read_marker(self.connection, self.job, "v1")
        assert marker is not None
        assert marker.end_offsets == {"source": {self.source: {0: self.records}}}
        assert sum(written.count for written in marker.written[self.output].values()) == self.records
        stable, high = (end_offsets(self.connection, self.output, committed=committed) for committed in (True, False))
        assert stable == high, "a transaction is left open"
        return marker

    def planned_batches(self) -> Callable[[int], int]:
        """By the offset of a record, the batch that it was planned for."""
        plans = {
            int(path.name): json.loads(path.read_text())["0"] for path in (self.checkpoint / "offsets").glob("[0-9]*")
        }
        ends = [plans[batch] for batch in sorted(plans)]
        return lambda offset: bisect_right(ends, offset)


@pytest.fixture
def bench(connection: Connection, tmp_path: Path) -> Iterator[Bench]:
    return Bench(connection, tmp_path)


pytestmark = pytest.mark.timeout(900)  # dozens of processes, on a machine that may be busy

STEPS = [
    "sent_init_producer_id",
    "fenced",
    "marker_read",
    "planned",
    "begun",
    "task_produced",
    "sent_txn_offset_commit",
    "offsets_committed",
    "plan_synced",
    "marker_written",
    "ending",
    "sent_end_txn",
    "ended",
    "committed",
    "written_down",
]
ONCE = {"sent_init_producer_id", "fenced", "marker_read"}


OVER_TLS = {"fenced", "begun", "task_produced", "offsets_committed", "sent_end_txn"}
"""Where `make test` kills it there: around the fence, the begin, the rows, the offsets and the commit."""


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step(bench: Bench, step: str) -> None:
    kill_at(bench, step)


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[pytest.mark.long] * (step not in OVER_TLS)) for step in STEPS]
)
def test_killed_at_every_step_over_tls_and_sasl(secured: Connection, tmp_path: Path, step: str) -> None:
    kill_at(Bench(secured, tmp_path), step)


def kill_at(bench: Bench, step: str) -> None:
    bench.run(kill_at=(step, 1 if step in ONCE else 2), fails="killed")
    bench.run(kill_at=(step, 1), fails="killed")  # and again, on the way back
    bench.run()
    bench.check()


def test_a_checkpoint_without_its_last_commit_is_skipped_over(bench: Bench) -> None:
    bench.run(batches=2)
    (bench.checkpoint / "commits" / "1").unlink()
    assert bench.run()[0] == {"batch": 1, "decision": "skip"}
    bench.check()


def test_a_plan_lost_before_the_commit_may_come_back_larger(bench: Bench) -> None:
    """A power cut took `offsets/1`, which was not synced yet: nothing of it is visible, so another range is as good."""
    bench.run(kill_at=("task_produced", 2), fails="killed")
    (bench.checkpoint / "offsets" / "1").unlink()
    bench.run(limit=70)
    bench.check()


def test_a_plan_that_changed_after_the_commit_is_refused(bench: Bench) -> None:
    """Skipping by the number alone would lose what the larger range has more."""
    bench.run(batches=2)
    (bench.checkpoint / "commits" / "1").unlink()
    (bench.checkpoint / "offsets" / "1").unlink()
    bench.run(limit=70, fails="the checkpoint plans it up to")
    assert len(bench.visible()) == 100


def test_a_checkpoint_rolled_back_by_two_batches_is_refused(bench: Bench) -> None:
    bench.run(batches=3)
    for name in ("commits/1", "commits/2", "offsets/2"):
        (bench.checkpoint / name).unlink()
    bench.run(fails="the checkpoint was rolled back")
    assert len(bench.visible()) == 150


def test_a_fresh_checkpoint_is_refused(bench: Bench) -> None:
    bench.run(batches=2)
    shutil.rmtree(bench.checkpoint)
    bench.run(fails="the last commit belongs to checkpoint")
    assert len(bench.visible()) == 100


def test_a_task_attempted_twice_aborts_the_batch(bench: Bench) -> None:
    """The broker would acknowledge the second attempt's other rows and throw them away,
    as their sequences are known.
    """
    bench.run(batches=1)
    bench.run(batches=1, twice=True, fails="another attempt has claimed it")
    assert len(bench.visible()) == 50
    bench.run()
    bench.check()


def test_a_consumer_group_reset_changes_nothing(bench: Bench) -> None:
    bench.run(batches=2)
    client, group = admin(bench.connection), job_group(bench.job, "v1")
    partitions = [ConfluentPartition(bench.source, 0, 0)]
    for future in client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions)]).values():
        future.result()
    bench.run(batches=1)
    for future in client.delete_consumer_groups([group]).values():
        future.result()
    bench.run()
    bench.check()


def test_the_group_shows_the_lag(bench: Bench) -> None:
    bench.run(batches=2)
    client, group = admin(bench.connection), job_group(bench.job, "v1")
    (future,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    assert [(part.topic, part.partition, part.offset) for part in future.result().topic_partitions] == [
        (bench.source, 0, 100)
    ]


def test_a_batch_longer_than_the_transaction_timeout_fails_whole(bench: Bench) -> None:
    bench.run(batches=1)
    bench.run(batches=1, timeout_ms=1000, outlast=True, fails="more than its timeout")
    assert len(bench.visible()) == 50
    bench.run()
    bench.check()


@pytest.mark.parametrize("step", ["task_produced", "ending"])
def test_a_driver_stopped_past_the_fence_of_its_successor_commits_nothing(bench: Bench, step: str) -> None:
    bench.run(batches=1)
    zombie = bench.start(stop_at=(step, 1))
    stopped = os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert stopped is not None
    assert stopped.si_code == os.CLD_STOPPED, "its transaction is open, with all rows in it"
    bench.run(batches=2)
    os.kill(zombie.pid, signal.SIGCONT)
    _, err = zombie.communicate(timeout=300)
    assert zombie.returncode == 1
    assert "Fenced" in err
    bench.run()
    bench.check()


def test_an_open_transaction_of_a_stranger_does_not_hide_the_marker(bench: Bench) -> None:
    """The marker is read to where the topic ended, not to the last stable offset, which a stranger holds back."""
    from mainstem.client.internal import COMMITS
    from mainstem.client.transaction import SharedTransaction
    from mainstem.core import TopicPartition

    stranger = SharedTransaction(bench.connection, f"stranger-{bench.job}", timeout_ms=5000)
    stranger.fence()
    with stranger.writer(stranger.begin()) as writer:
        writer.append(TopicPartition(COMMITS, 0), [b"stranger"], [b"{}"], None, int(time.time() * 1000))
        writer.finish()
        bench.run(batches=2)
        marker = read_marker(bench.connection, bench.job, "v1")  # waits until the broker has aborted the stranger
    assert marker is not None
    assert marker.batch == 1
    stranger.close()
