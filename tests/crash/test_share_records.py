"""The log process dies under members of a share group: what was acknowledged does not come again, and all else comes.

Members fetch from two partitions, accept or release what they get, close their sessions now and then, and connect again
when the process is gone. What they were answered stands in one ledger.
"""

import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.wire.errors import Code
from tests.crash.test_coordinators import STARTED_SECONDS, LogProcess
from tests.support import processes
from tests.support.kafka_tools import command
from tests.support.sharing import ACCEPT, RELEASE, ShareMember
from tests.support.waiting import wait_until

TOPIC, GROUP = "facts", "workers"
PARTITIONS = 2


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogProcess]:
    process = LogProcess(tmp_path)
    process.start()
    yield process
    process.kill()


class Ledger:
    """What was done with each record, and in which life of the log; a record is (partition, offset)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.life = 0
        self.accepted: dict[tuple[int, int], int] = {}
        """Answered; in which life."""
        self.said: set[tuple[int, int]] = set()
        """Whether it was answered or not."""
        self.conflicts: list[str] = []

    def got(self, member: str, records: set[tuple[int, int]], life: int) -> None:
        """By an answer of that life."""
        with self._lock:
            for record in records:
                if self.accepted.get(record, life + 1) <= life:
                    self.conflicts.append(f"{member} got {record}, which was accepted")

    def saying(self, records: set[tuple[int, int]]) -> None:
        with self._lock:
            self.said |= records

    def answered(self, records: set[tuple[int, int]], life: int) -> None:
        with self._lock:
            self.accepted |= dict.fromkeys(records, life)


class Worker(threading.Thread):
    """A member by hand."""

    def __init__(self, log: LogProcess, ledger: Ledger, topic_id: Any, seed: int) -> None:
        super().__init__(name=f"worker-{seed}", daemon=True)
        self.log, self.ledger, self.topic_id = log, ledger, topic_id
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.restless = True
        self.fetches = 0
        self.failure: BaseException | None = None
        self.new()

    def new(self) -> None:
        self.life = self.ledger.life
        self.member = ShareMember(self.log.connect(), GROUP, self.topic_id, self.name)

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    self.work()
                except OSError:
                    self.member.client.close()
                    self.new()
        except BaseException as error:
            self.failure = error
        finally:
            self.member.client.close()

    def work(self) -> None:
        first = self.member.epoch == 0
        found = self.member.fetch(*range(PARTITIONS) if first else (), wait=100, records=self.random.randint(1, 20))
        if not isinstance(found, dict):
            assert found is Code.share_session_not_found, found
            self.new()
            return
        self.fetches += 1
        got: dict[int, list[int]] = {}
        for number, (code, acquired, _) in found.items():
            assert code is Code.none, code
            got[number] = [offset for first, last, _ in acquired for offset in range(first, last + 1)]
            self.ledger.got(self.name, {(number, offset) for offset in got[number]}, self.life)
        for number, offsets in got.items():
            if self.restless and self.random.random() < 0.1:
                continue  # it keeps them until its session ends
            self.acknowledge(number, offsets)
        if self.restless and self.random.random() < 0.1:
            self.member.acknowledge(epoch=-1)
            self.member.epoch = 0

    def acknowledge(self, number: int, offsets: list[int]) -> None:
        kinds = {each: RELEASE if self.restless and self.random.random() < 0.2 else ACCEPT for each in offsets}
        accepted = {(number, offset) for offset, kind in kinds.items() if kind == ACCEPT}
        if not offsets:
            return
        self.ledger.saying(accepted)
        answer = self.member.acknowledge(*((each, each, kind) for each, kind in kinds.items()), partition=number)
        if answer == [Code.none]:
            self.ledger.answered(accepted, self.life)
        else:  # the lock may have ended, the session with the process before
            assert answer in ([Code.invalid_record_state], Code.share_session_not_found), answer


def prepare(log: LogProcess) -> Any:
    """The topic's id; the group begins at its start, and had a member that was assigned it."""
    with log.connect() as raw:
        raw.create_topic(TOPIC, PARTITIONS)
        names = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "10"}
        configs = [{"name": name, "config_operation": 0, "value": value} for name, value in names.items()]
        raw.call(44, 1, resources=[{"resource_type": 32, "resource_name": GROUP, "configs": configs}])
        for epoch, names in ((0, [TOPIC]), (-1, None)):
            raw.call(76, 1, group_id=GROUP, member_id="m", member_epoch=epoch, subscribed_topic_names=names)
        return raw.call(3, 12, topics=[{"topic_id": None, "name": TOPIC}]).topics[0].topic_id


def produce(log: LogProcess, sent: list[tuple[int, int]], stop: threading.Event) -> None:
    """Records in both partitions; `sent` are those that were acknowledged, or may be there."""
    raw, counts = log.connect(), [0] * PARTITIONS
    while not stop.is_set():
        number = len(sent) % PARTITIONS
        try:
            assert raw.produce(TOPIC, b"v", partition=number) == Code.none
        except OSError:
            raw.close()
            raw = log.connect()
        sent.append((number, counts[number]))
        counts[number] += 1
        time.sleep(0.002)
    raw.close()


def killed_while(log: LogProcess, kills: int, *, done: Callable[[], int], on_death: Callable[[], None]) -> None:
    """Kill it so many times, each time when something more is done."""
    chance = random.Random(kills)
    for _ in range(kills):
        before = done()
        wait_until(lambda before=before: done() > before, "something is done")  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.4))
        log.kill()
        on_death()
        log.start()


def kill_again_and_again(log: LogProcess, kills: int) -> None:
    topic_id, ledger = prepare(log), Ledger()
    sent, enough = list[tuple[int, int]](), threading.Event()
    producer = threading.Thread(target=produce, args=(log, sent, enough), daemon=True)
    workers = [Worker(log, ledger, topic_id, seed) for seed in range(4)]
    for thread in (producer, *workers):
        thread.start()

    def a_new_life() -> None:
        ledger.life += 1

    killed_while(log, kills, done=lambda: min(each.fetches for each in workers), on_death=a_new_life)
    wait_until(lambda: len(sent) >= 40, "there are records")
    enough.set()
    producer.join(STARTED_SECONDS)
    for worker in workers:
        worker.restless = False
    with log.connect() as raw:
        listed = raw.call(2, 7, replica_id=-1, topics=[{"name": TOPIC, "partitions": _ends()}]).topics[0].partitions
        ends = {each.partition_index: each.offset for each in listed}
    there = {(number, offset) for number, end in ends.items() for offset in range(end)}
    wait_until(lambda: there <= ledger.said or any(each.failure for each in workers), "everything was done", seconds=60)
    for worker in workers:
        worker.stop.set()
    for worker in workers:
        worker.join(STARTED_SECONDS)
        assert worker.failure is None, (worker.failure, log.said.read_text()[-2000:])
    assert ledger.conflicts == []


def _ends() -> list[dict[str, int]]:
    return [{"partition_index": number, "timestamp": -1} for number in range(PARTITIONS)]


def test_killed_under_members_of_a_share_group(log: LogProcess) -> None:
    kill_again_and_again(log, 4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_many_times_under_members_of_a_share_group(log: LogProcess) -> None:
    kill_again_and_again(log, 60)


# --- Kafka's own share consumers --------------------------------------------------------------------------------------


class JavaWorker(threading.Thread):
    """Kafka's verifiable share consumer, and what it says: offsets that it was given, and those that it has done."""

    def __init__(self, log: LogProcess, directory: Path, mode: str) -> None:
        super().__init__(daemon=True)
        config = directory / f"{mode}.properties"
        config.write_text("reconnect.backoff.max.ms=100\nretry.backoff.max.ms=100\nrequest.timeout.ms=5000\n")
        self.events: list[dict[str, Any]] = []
        arguments = ["--topic", TOPIC, "--group-id", GROUP, "--acknowledgement-mode", mode]
        self.process = processes.start(
            command(
                "org.apache.kafka.tools.VerifiableShareConsumer",
                *("--bootstrap-server", log.bootstrap, "--command-config", str(config), *arguments),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it says that it has lost its log, again and again
            text=True,
        )

    def run(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                self.events.append(json.loads(line))

    def offsets(self, name: str) -> Iterator[tuple[int, tuple[int, int]]]:
        """(time, record) of each in such events."""
        for event in list(self.events):
            if event["name"] == name and event.get("success", True):
                for each in event["partitions"]:
                    for offset in each["offsets"]:
                        yield event["timestamp"], (each["partition"], offset)


def kill_under_java(log: LogProcess, directory: Path, kills: int) -> None:
    prepare(log)
    sent, enough = list[tuple[int, int]](), threading.Event()
    producer = threading.Thread(target=produce, args=(log, sent, enough), daemon=True)
    workers = [JavaWorker(log, directory, mode) for mode in ("sync", "async")]
    for thread in (producer, *workers):
        thread.start()

    def accepted() -> dict[tuple[int, int], int]:
        return {record: at for worker in workers for at, record in worker.offsets("offsets_acknowledged")}

    killed_while(log, kills, done=lambda: len(accepted()), on_death=lambda: None)
    wait_until(lambda: len(sent) >= 40, "there are records")
    enough.set()
    producer.join(STARTED_SECONDS)
    with log.connect() as raw:
        listed = raw.call(2, 7, replica_id=-1, topics=[{"name": TOPIC, "partitions": _ends()}]).topics[0].partitions
        there = {(each.partition_index, offset) for each in listed for offset in range(each.offset)}

        def lags() -> set[int]:
            topics = [{"topic_name": TOPIC, "partitions": list(range(PARTITIONS))}]
            answer = raw.call(90, 1, groups=[{"group_id": GROUP, "topics": topics}])
            return {each.lag for topic in answer.groups[0].topics for each in topic.partitions}

        wait_until(lambda: lags() == {0}, "everything was done", seconds=90)
    for worker in workers:
        processes.stop(worker.process)
        worker.join(STARTED_SECONDS)
    done = accepted()
    given = [(at, record) for worker in workers for at, record in worker.offsets("records_consumed")]
    assert {record for _, record in given} >= there
    again = [(at, record) for at, record in given if at > done.get(record, at)]
    assert again == [], "given out after it was acknowledged"


@pytest.mark.timeout(300)
def test_killed_under_kafkas_own_share_consumers(log: LogProcess, tmp_path: Path) -> None:
    kill_under_java(log, tmp_path, 2)
