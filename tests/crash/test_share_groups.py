"""The log process dies in the middle of heartbeats of a share group, and while offsets of others are set and deleted.

Members come and go; when the process is gone they wait for the next one and send their last heartbeat again, as clients
do. A member that hears every second answer is never fenced, and its epoch never goes back. Of offsets that were set or
deleted the last answer counts, or what was asked for after it.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from mainstem.wire.errors import Code
from tests.crash.test_coordinators import STARTED_SECONDS, LogProcess
from tests.support.raw import RETRIED, codes_of
from tests.support.waiting import wait_until

TOPIC, GROUP = "facts", "workers"
PARTITIONS = 4

Offsets: TypeAlias = dict[int, int]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogProcess]:
    process = LogProcess(tmp_path)
    process.start()
    yield process
    process.kill()


class Client(threading.Thread, ABC):
    """Asks something again and again, until `stop`."""

    def __init__(self, log: LogProcess, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.log = log
        self.random = random.Random(seed)
        self.stop, self.restless = threading.Event(), True
        self.answers = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        self.raw = self.log.connect()
        try:
            while not self.stop.is_set():
                self.ask()
                time.sleep(self.random.uniform(0, 0.02))
        except BaseException as error:
            self.failure = error
        finally:
            self.raw.close()

    @abstractmethod
    def ask(self) -> None:
        """Once."""

    def call(self, api_key: int, version: int, /, **fields: Any) -> Any:
        """None if the process died under it."""
        try:
            answer = self.raw.call(api_key, version, **fields)
        except OSError:
            self.raw.close()
            self.raw = self.log.connect()
            return None
        self.answers += 1
        return answer


class Member(Client):
    """Of the one group."""

    def __init__(self, log: LogProcess, seed: int) -> None:
        super().__init__(log, f"member-{seed}", seed)
        self.number = self.fenced = 0
        self.new()

    def new(self) -> None:
        self.number += 1
        self.member_id = f"{self.name}-{self.number}"
        self.epoch, self.reads, self.unanswered = 0, set[int](), 0

    def beat(self, epoch: int, *, full: bool) -> Any:
        topics = [TOPIC] if full else None
        asked = {"group_id": GROUP, "member_id": self.member_id, "member_epoch": epoch}
        while (answer := self.call(76, 1, **asked, subscribed_topic_names=topics)) is None:
            self.unanswered += 1
            topics = [TOPIC]  # after an error a client tells everything
        return answer

    def ask(self) -> None:
        if self.epoch > 0 and self.restless and self.random.random() < 0.05:
            answer = self.beat(-1, full=False)
            assert codes_of(answer) <= {Code.unknown_member_id}, "it has left before the process died"
            self.new()
        answer = self.beat(self.epoch, full=self.epoch == 0 or self.random.random() < 0.5)
        codes = codes_of(answer)
        if codes & RETRIED:
            return
        if codes:
            assert codes <= {Code.fenced_member_epoch, Code.unknown_member_id}, codes
            self.fenced += self.unanswered < 2
            self.new()
            return
        assert answer.member_epoch >= self.epoch
        self.epoch, self.unanswered = answer.member_epoch, 0
        if answer.assignment is not None:
            self.reads = {number for each in answer.assignment.topic_partitions for number in each.partitions}


class Administrator(Client):
    """Sets and deletes the offsets of a group of its own, and looks whether they are what it was told."""

    def __init__(self, log: LogProcess, seed: int) -> None:
        super().__init__(log, f"administrator-{seed}", seed)
        self.group = f"{self.name}-group"
        self.known: Offsets = {}
        self.next = 0

    def ask(self) -> None:
        chance = self.random.random()
        if chance < 0.2:
            after: Offsets = {}
            answer = self.call(92, 0, group_id=self.group, topics=[{"topic_name": TOPIC}])
        elif chance < 0.3:
            after = {}
            answer = self.call(42, 2, groups_names=[self.group])
        else:
            numbers = self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))
            self.next += 1
            after = self.known | dict.fromkeys(numbers, self.next)
            partitions = [{"partition_index": number, "start_offset": self.next} for number in numbers]
            answer = self.call(91, 0, group_id=self.group, topics=[{"topic_name": TOPIC, "partitions": partitions}])
        if answer is not None:
            assert codes_of(answer) <= {Code.group_id_not_found, Code.unknown_topic_or_partition}, answer
        found = self.offsets()
        allowed = [after] if answer is not None else [self.known, after]
        for number in range(PARTITIONS):  # of what was not answered each partition may be one or the other
            assert found.get(number) in [each.get(number) for each in allowed], (number, found, allowed)
        self.known = found

    def offsets(self) -> Offsets:
        asked = [{"topic_name": TOPIC, "partitions": list(range(PARTITIONS))}]
        for topics in (asked, None):
            while (answer := self.call(90, 1, groups=[{"group_id": self.group, "topics": topics}])) is None:
                continue
            (group,) = answer.groups
            assert codes_of(group) == set()
            each = [one for topic in group.topics for one in topic.partitions if one.start_offset != -1]
            found = {one.partition_index: one.start_offset for one in each}
            if topics is not None:
                named = found
        assert found == named or self.stop.is_set(), "what the group says, and what is kept"
        return found


def kill_again_and_again(log: LogProcess, kills: int) -> None:
    with log.connect() as raw:
        raw.create_topic(TOPIC, PARTITIONS)
    chance = random.Random(1)
    members = [Member(log, seed) for seed in range(4)]
    clients: list[Client] = [*members, *(Administrator(log, seed) for seed in range(2))]
    for client in clients:
        client.start()

    def all_are_told() -> None:
        before = [client.answers for client in clients]
        wait_until(
            lambda: all(
                client.failure or client.answers > count + 2 for client, count in zip(clients, before, strict=True)
            ),
            "everybody has been told something",
        )

    for _ in range(kills):
        all_are_told()
        time.sleep(chance.uniform(0, 0.4))  # anywhere
        log.kill()
        log.start()
    for client in clients:
        client.restless = False
    all_are_told()
    all_are_told()
    for client in clients:
        client.stop.set()
    for client in clients:
        client.join(STARTED_SECONDS)
        assert client.failure is None, (client.failure, log.said.read_text()[-2000:])
        assert not client.is_alive()
    assert sum(member.fenced for member in members) == 0
    with log.connect() as raw:
        for member in members:  # whatever it was told last, all others have come by now
            member.raw = raw
            member.ask()
        (group,) = raw.call(77, 1, group_ids=[GROUP]).groups
    told = {member.member_id: (member.epoch, member.reads) for member in members}
    assert {each.member_id: (each.member_epoch, numbers(each)) for each in group.members} == told
    assert set().union(*(reads for _, reads in told.values())) == set(range(PARTITIONS))


def numbers(member: Any) -> set[int]:
    return {number for each in member.assignment.topic_partitions for number in each.partitions}


def test_killed_in_the_middle_of_heartbeats_and_of_offsets_that_are_set(log: LogProcess) -> None:
    kill_again_and_again(log, 4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_many_times_in_the_middle_of_heartbeats_and_of_offsets_that_are_set(log: LogProcess) -> None:
    kill_again_and_again(log, 60)
