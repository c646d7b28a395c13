"""The log process dies in the middle of transactions, again and again: everything it acknowledged holds.

Workers write transactions, each to two partitions and a group's offset, and keep their own books of what they were
told. When the process is gone they wait for the next one and either go on with the same requests, as a client that
retries, or take their transactional id over, as a client that was restarted.
"""

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from mainstem.wire.errors import Code
from tests.support import processes
from tests.support.ports import free_port
from tests.support.raw import RETRIED, RawClient, codes_of, producer_of
from tests.support.waiting import wait_until

TOPIC = "facts"
STARTED_SECONDS = 60


class LogProcess:
    """`mainstem log start`, which is killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.said = directory / "log.txt"
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._process: Any = None

    def start(self) -> None:
        command = ["mainstem", "log", "start", "--data", str(self.data), "--listen", self.bootstrap]
        with self.said.open("ab") as out:
            self._process = processes.start([sys.executable, "-m", *command], stdout=out, stderr=out)
        self.connect().close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def connect(self) -> RawClient:
        """A connection, as soon as there is somebody to answer."""
        until = time.monotonic() + STARTED_SECONDS
        while True:
            try:
                return RawClient(self.bootstrap)
            except OSError:
                assert time.monotonic() < until, self.said.read_text()[-2000:]
                time.sleep(0.02)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogProcess]:
    process = LogProcess(tmp_path)
    process.start()
    yield process
    process.kill()


class Worker(threading.Thread):
    """Transaction after transaction under one transactional id."""

    def __init__(self, log: LogProcess, name: str, version: int, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.log = log
        self.version = version
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.failure: BaseException | None = None
        self.producer = (-1, -1)
        self.sequences = {0: 0, 1: 0}
        self.raw: RawClient

    def run(self) -> None:
        try:
            self.raw = self.log.connect()
            self.take_over()
            number = 0
            while not self.stop.is_set():
                number += 1
                self.transaction(number)
        except BaseException as error:
            self.failure = error
        finally:
            self.raw.close()

    # --- requests that outlive the process ---

    def call(self, api: int, version: int, /, **fields: Any) -> Any:
        """Ask until there is an answer that is not `later`: over the deaths of the process."""
        until = time.monotonic() + STARTED_SECONDS
        while time.monotonic() < until:
            try:
                answer = self.raw.call(api, version, **fields)
            except OSError:
                self.raw.close()
                self.raw = self.log.connect()
                continue
            if not codes_of(answer) & RETRIED:
                return answer
            time.sleep(0.01)
        raise AssertionError(f"{self.name}: no answer to api {api}")

    def take_over(self) -> None:
        answer = self.call(22, 4, transactional_id=self.name, transaction_timeout=60_000)
        assert answer.error_code == Code.none
        self.producer, self.sequences = producer_of(answer), {0: 0, 1: 0}

    @contextmanager
    def noticing_death(self) -> Iterator[list[bool]]:
        """Whether the process has died under the requests inside."""
        before, died = self.raw, [False]
        yield died
        died[0] = self.raw is not before

    def transaction(self, number: int) -> None:
        commit = self.random.random() < 0.8
        with self.noticing_death() as died:
            self.write(number)
        if died[0] and self.random.random() < 0.5:
            self.take_over()  # as after a restart of the client: whatever was open is aborted
            self.aborted.append(number)
            return
        with self.noticing_death() as died:
            answer = self.call(
                26,
                5 if self.version == 2 else 3,
                transactional_id=self.name,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                committed=commit,
            )
        assert answer.error_code == Code.none, (self.name, number, Code(answer.error_code).name, died)
        (self.committed if commit else self.aborted).append(number)
        if self.version == 2:
            self.producer, self.sequences = producer_of(answer), {0: 0, 1: 0}

    def write(self, number: int) -> None:
        if self.version == 1:
            topics = [{"name": TOPIC, "partitions": [0, 1]}]
            fields = {"v3_and_below_transactional_id": self.name, "v3_and_below_producer_id": self.producer[0]}
            fields |= {"v3_and_below_producer_epoch": self.producer[1], "v3_and_below_topics": topics}
            assert not codes_of(self.call(24, 3, **fields))
            assert not codes_of(self.call(25, 3, **self.identity(), group_id=self.name))
        for partition in (0, 1):
            code = self.produce(partition, f"{self.name} {number}".encode())
            assert code is Code.none, (self.name, number, code)
            self.sequences[partition] += 1
        entry = {"partition_index": 0, "committed_offset": number}
        topics = [{"name": TOPIC, "partitions": [entry]}]
        version = 5 if self.version == 2 else 3
        assert not codes_of(self.call(28, version, **self.identity(), group_id=self.name, topics=topics))

    def identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
        }

    def produce(self, partition: int, value: bytes) -> Code:
        from mainstem.records import Record, build_batch

        batch = build_batch(
            [Record(0, int(time.time() * 1000), None, value)],
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=self.sequences[partition],
            transactional=True,
        )
        data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": batch}]}]
        answer = self.call(
            0,
            12 if self.version == 2 else 9,
            transactional_id=self.name,
            acks=-1,
            timeout=30_000,
            topic_data=data,
        )
        return Code(answer.responses[0].partition_responses[0].error_code)


def read_committed(log: LogProcess, partition: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": log.bootstrap,
            "group.id": "books",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    found = []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            break
        found.append(message.value().decode())
    consumer.close()
    return found


def kill_again_and_again(log: LogProcess, kills: int) -> None:
    with log.connect() as raw:
        raw.create_topic(TOPIC, 2)
    workers = [Worker(log, f"w{number}", 1 + number % 2, number) for number in range(4)]
    for worker in workers:
        worker.start()
    chance = random.Random(kills)

    def wait_for_a_commit_each() -> None:
        done = [len(worker.committed) for worker in workers]
        wait_until(
            lambda: all(
                worker.failure or len(worker.committed) > count for worker, count in zip(workers, done, strict=True)
            ),
            "each worker has committed again",
        )

    for _ in range(kills):
        wait_for_a_commit_each()
        time.sleep(chance.uniform(0, 0.8))  # anywhere in their transactions
        log.kill()
        log.start()
    wait_for_a_commit_each()
    for worker in workers:
        worker.stop.set()
    for worker in workers:
        worker.join(2 * STARTED_SECONDS)
        assert worker.failure is None, (worker.failure, log.said.read_text()[-3000:])
        assert not worker.is_alive()
    for partition in (0, 1):
        found = read_committed(log, partition)
        for worker in workers:
            own = [int(value.split()[1]) for value in found if value.split()[0] == worker.name]
            assert own == worker.committed, f"{worker.name} in partition {partition}"
    with log.connect() as raw:
        for worker in workers:
            assert raw.committed(worker.name, TOPIC, stable=True) == (worker.committed[-1], Code.none)
        assert {each.transaction_state for each in raw.call(66, 2).transaction_states} <= {
            "CompleteCommit",
            "CompleteAbort",
            "Empty",
        }


def test_killed_in_the_middle_of_transactions(log: LogProcess) -> None:
    kill_again_and_again(log, 4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_many_times_in_the_middle_of_transactions(log: LogProcess) -> None:
    kill_again_and_again(log, 60)


def test_commits_of_offsets_hold(log: LogProcess) -> None:
    """OffsetCommit outside transactions: the last one that was answered is there, or a later one."""
    with log.connect() as raw:
        raw.create_topic(TOPIC, 1)
    told, stop = [0] * 8, threading.Event()

    def commit(number: int) -> None:
        raw, offset = log.connect(), 0
        while not stop.is_set():
            offset += 1
            topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
            try:
                answer = raw.call(8, 8, group_id=f"g{number}", topics=topics)
            except OSError:
                raw.close()
                raw = log.connect()
                continue
            if not codes_of(answer):
                told[number] = offset
        raw.close()

    threads = [threading.Thread(target=commit, args=(number,), daemon=True) for number in range(len(told))]
    for thread in threads:
        thread.start()
    for _ in range(3):
        since = list(told)
        wait_until(lambda: all(a > b for a, b in zip(told, since, strict=True)), "each has committed")  # noqa: B023
        time.sleep(0.3)
        log.kill()
        before = list(told)
        log.start()
        with log.connect() as raw:
            for number, offset in enumerate(before):
                assert raw.committed(f"g{number}", TOPIC)[0] >= offset
    stop.set()
    for thread in threads:
        thread.join(STARTED_SECONDS)
        assert not thread.is_alive()
