"""A micro-batch engine in 150 lines, for killing: it plans, runs and writes down batches as Spark does, and its tasks
are processes of their own, but every step of it can be the last one.

    python -c "from tests.support.sink_engine import main; main()" '{"bootstrap": ..., "checkpoint": ..., "kill_at":
    ["sent_end_txn", 2]}'

`kill_at`: the name of a step and the how-manieth time; there the process sends itself SIGKILL, at `stop_at` SIGSTOP.
Steps are those that the sink traces, and the engine's own: planned, task_produced, written_down.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client import Connection, Security
from mainstem.client.partitioner import partition_for
from mainstem.client.progress import Output
from mainstem.client.reader import arrived
from mainstem.client.topics import end_offsets
from mainstem.client.transaction import TransactionWriter
from mainstem.core import TopicPartition
from mainstem.process.sink_claims import Claim, send_claim
from mainstem.process.sink_commit import BatchCommitter, JobIdentity, TaskOutput
from mainstem.process.sink_decision import Decision
from mainstem.records.fingerprint import fingerprint_sum
from tests.support.waiting import wait_until

Range = dict[int, int]


class Config(msgspec.Struct, frozen=True):
    bootstrap: str
    checkpoint: str
    job: str
    source: str
    output: str
    batches: int  # end after so many that ran; the input may end earlier
    kill_at: tuple[str, int] = ("", 0)
    stop_at: tuple[str, int] = ("", 0)
    limit: int = 50  # records of a partition per batch
    timeout_ms: int = 60_000
    pause_in_task: float = 0.0  # seconds between a task's claim and its rows, in the first batch that runs
    twice: bool = False  # every task is attempted twice, with other rows the second time
    outlast: bool = False  # commit each batch only when the log has aborted its transaction for its age
    output_partitions: int = 3
    workers: int = 2  # processes that run the tasks
    dealt: int = (
        -1
    )  # where it is a number, rows go to tasks at random, in any order; a batch that is run again, otherwise
    security: Security = Security()


class Engine:
    def __init__(self, config: Config, say: Callable[..., None]) -> None:
        self.config, self.say = config, say
        self.connection = Connection(config.bootstrap, config.security)
        self.checkpoint = Path(config.checkpoint)
        self.random = random.Random(config.dealt)
        self.steps: Counter[str] = Counter()
        self.workers: list[Pipe] = []

    def trace(self, step: str) -> None:
        self.steps[step] += 1
        if (step, self.steps[step]) == self.config.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if (step, self.steps[step]) == self.config.stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)

    def run(self) -> None:
        self._start_checkpoint()
        for _ in range(self.config.workers):  # before there are threads: a fork does not take them along
            self._fork_worker()
        identity = JobIdentity(self.config.job, "v1", str(self.checkpoint))
        sink = BatchCommitter(
            identity, self.connection, transaction_timeout_ms=self.config.timeout_ms, trace=self.trace
        )
        try:
            sink.open()
            for _ in range(self.config.batches):
                planned = self._plan()
                if planned is None:
                    break
                self._batch(sink, *planned)
        finally:
            sink.close()
            for worker in self.workers:
                worker.close()

    def _fork_worker(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            for pipe in (ours, *self.workers):
                pipe.close()  # else nobody would see the driver's death
            task(theirs)
            os._exit(0)
        theirs.close()
        self.workers.append(ours)

    def _batch(self, sink: BatchCommitter, batch: int, start: Range, end: Range) -> None:
        def positions(offsets: Range) -> dict[str, dict[str, Range]]:
            return {"source": {self.config.source: offsets}}

        decision = sink.decide(batch, positions(end), positions(start) if batch else None)
        self.say(batch=batch, decision=decision.value)
        if decision is Decision.RUN:
            plan = sink.begin()
            try:
                outputs = self._run_tasks(plan, batch, self._read(start, end))
                self.trace("task_produced")
                if self.config.outlast:
                    wait_until(self._nothing_open, "the transaction is aborted")
                sink.commit(batch, positions(end), outputs)
            except BaseException:
                sink.abort()
                raise
        _rename_into_place(self.checkpoint / "commits" / str(batch), {})
        self.trace("written_down")

    def _nothing_open(self) -> bool:
        stable = end_offsets(self.connection, self.config.output, committed=True)
        return stable == end_offsets(self.connection, self.config.output)

    def _run_tasks(self, plan: Any, batch: int, rows: list[tuple[bytes, bytes]]) -> list[TaskOutput]:
        shares: dict[int, list[tuple[bytes, bytes]]] = {}
        dealt = self.config.dealt >= 0
        for key, value in self.random.sample(rows, len(rows)) if dealt else rows:
            partition = partition_for(key, self.config.output_partitions)
            if dealt:
                partition = self.random.randrange(self.config.output_partitions)
            shares.setdefault(partition, []).append((key, value + b":%d" % batch))
        jobs = [
            (plan, TopicPartition(self.config.output, p), share, self.config.pause_in_task)
            for p, share in shares.items()
        ]
        if self.config.twice:
            jobs += [(plan, partition, share[:-1], 0.0) for _, partition, share, _ in jobs]
        outputs = []
        for number, job in enumerate(jobs):
            self.workers[number % len(self.workers)].send(job)
        for number in range(len(jobs)):
            answer = self.workers[number % len(self.workers)].recv()
            if isinstance(answer, Exception):
                raise answer
            outputs.append(answer)
        return outputs

    def _read(self, start: Range, end: Range) -> list[tuple[bytes, bytes]]:
        settings = self.connection.confluent(isolation_level="read_committed", enable_auto_commit=False)
        # A log that was killed is back within a second.
        soon = {"reconnect.backoff.max.ms": 100, "metadata.recovery.strategy": "none", "log_level": 0}
        consumer = Consumer(settings | soon | {"group.id": "engine", "fetch.wait.max.ms": 20})
        wanted = {partition for partition in end if start.get(partition, 0) < end[partition]}
        consumer.assign([ConfluentPartition(self.config.source, p, start.get(p, 0)) for p in wanted])
        rows = []
        while wanted:
            for message in arrived(consumer, 0.2):
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                if offset < end[partition]:
                    rows.append((message.key(), b"%d:%d" % (partition, offset)))
                if offset + 1 >= end[partition]:
                    wanted.discard(partition)
        consumer.close()
        return rows

    def _start_checkpoint(self) -> None:
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        if not (self.checkpoint / "metadata").exists():
            _rename_into_place(self.checkpoint / "metadata", {"id": str(uuid.uuid4())})

    def _plan(self) -> tuple[int, Range, Range] | None:
        """The batch to run: the last one planned, if it is not written down, else the next one."""
        planned = max((int(path.name) for path in (self.checkpoint / "offsets").iterdir()), default=-1)
        written = max((int(path.name) for path in (self.checkpoint / "commits").iterdir()), default=-1)
        batch = planned if planned > written else planned + 1
        start = _offsets(self.checkpoint / "offsets" / str(batch - 1))
        if batch > planned:
            end = {
                partition: min(start.get(partition, 0) + self.config.limit, last)
                for partition, last in end_offsets(self.connection, self.config.source).items()
            }
            if end == start:
                return None
            _rename_into_place(self.checkpoint / "offsets" / str(batch), end)
        self.trace("planned")
        return batch, start, _offsets(self.checkpoint / "offsets" / str(batch))


def task(driver: Pipe) -> None:
    """What a Spark task does: claim, produce with the driver's identity, report."""
    while True:
        try:
            job = driver.recv()
        except (EOFError, ConnectionResetError):  # it is dead; reset, where it left something unread
            return
        try:
            answer: object = write_share(*job)
        except Exception as error:
            answer = error
        try:
            driver.send(answer)
        except BrokenPipeError:
            return


def write_share(plan: Any, partition: TopicPartition, rows: list[tuple[bytes, bytes]], pause: float) -> TaskOutput:
    def join(wanted: TopicPartition) -> int:
        return send_claim(plan.claims, Claim(plan.transaction, wanted.topic, wanted.partition))

    with TransactionWriter(plan.ticket, join, batch_bytes=1024) as writer:
        now, middle = int(time.time() * 1000), len(rows) // 2
        for part in (rows[:middle], rows[middle:]):
            writer.append(partition, [key for key, _ in part], [value for _, value in part], None, now)
            time.sleep(pause)
        appended = writer.finish()[partition]
    return TaskOutput(partition, Output(appended.base, appended.last, appended.count, fingerprint_sum(rows)))


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _offsets(path: Path) -> Range:
    return {int(p): offset for p, offset in json.loads(path.read_text()).items()} if path.exists() else {}


def _rename_into_place(path: Path, content: object) -> None:
    """As Spark does it: whole or not at all, but not synced."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(content))
    new.rename(path.parent / path.name)


def main() -> None:
    Engine(msgspec.json.decode(sys.argv[1], type=Config), say).run()


class ForkedEngine:
    """An engine that is forked from a process that has imported what it needs: there in a tenth of the time."""

    _context = multiprocessing.get_context("forkserver")
    _context.set_forkserver_preload(["pytest", "__main__", __name__])  # a fork looks for the main module of its parent

    def __init__(self, config: Config) -> None:
        self._told, theirs = self._context.Pipe(duplex=False)
        self.process = self._context.Process(target=_run_forked, args=(config, theirs), daemon=False)
        self.process.start()
        theirs.close()

    def wait_for_batch(self) -> None:
        """Until it says something, or has ended."""
        wait([self._told, self.process.sentinel])

    def end(self, seconds: float = 300) -> tuple[int | None, str]:
        """Its exit code once it has ended, and why it has failed."""
        self.process.join(seconds)
        failure = ""
        with suppress(EOFError):
            while self._told.poll():
                said = self._told.recv()
                failure = said if isinstance(said, str) else failure
        self._told.close()
        return self.process.exitcode, failure


def _run_forked(config: Config, told: Pipe) -> None:
    try:
        Engine(config, lambda **facts: told.send(facts)).run()
    except Exception:
        told.send(traceback.format_exc())
        sys.exit(1)
