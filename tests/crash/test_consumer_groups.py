"""The log process dies in the middle of rebalances of a KIP-848 group: members go on with their epochs.

Members share partitions, come and go, and write into one ledger which partitions they read. When the process is gone
they wait for the next one and send their last heartbeat again, as clients do. No partition is ever in the ledger twice,
and a member that hears every second answer is never fenced.
"""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.wire.errors import Code
from tests.crash.test_coordinators import STARTED_SECONDS, LogProcess
from tests.support.raw import RETRIED, codes_of
from tests.support.waiting import wait_until

TOPIC, GROUP = "facts", "readers"
PARTITIONS = 12


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogProcess]:
    process = LogProcess(tmp_path)
    process.start()
    yield process
    process.kill()


class Ledger:
    """Who reads what, at every moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[int, str] = {}
        self.conflicts: list[str] = []

    def take(self, member: str, partitions: set[int]) -> None:
        with self._lock:
            for number in partitions:
                if number in self._readers:
                    self.conflicts.append(f"{member} got {number}, which {self._readers[number]} reads")
                self._readers[number] = member

    def give_up(self, member: str, partitions: set[int]) -> None:
        with self._lock:
            for number in partitions:
                if self._readers.get(number) == member:
                    del self._readers[number]

    def readers(self) -> dict[int, str]:
        with self._lock:
            return dict(self._readers)


class Member(threading.Thread):
    """A client of the consumer protocol by hand."""

    def __init__(self, log: LogProcess, ledger: Ledger, seed: int) -> None:
        super().__init__(name=f"member-{seed}", daemon=True)
        self.log, self.ledger = log, ledger
        self.random = random.Random(seed)
        self.stop, self.restless = threading.Event(), True
        self.number = 0
        self.fenced = 0
        self.beats = 0
        self.settled = False
        self.failure: BaseException | None = None
        self.new()

    def new(self) -> None:
        self.number += 1
        self.member_id = f"{self.name}-{self.number}"
        self.epoch, self.owned, self.unanswered = 0, set[int](), 0

    def run(self) -> None:
        self.raw = self.log.connect()
        try:
            with self.log.connect() as raw:
                self.topic_id = raw.call(3, 12, topics=[{"topic_id": None, "name": TOPIC}]).topics[0].topic_id
            while not self.stop.is_set():
                if self.epoch > 0 and self.restless and self.random.random() < 0.02:
                    self.leave()
                self.beat(full=self.epoch == 0 or self.random.random() < 0.7)
                time.sleep(self.random.uniform(0, 0.02))
        except BaseException as error:
            self.failure = error
        finally:
            self.raw.close()

    def call(self, **fields: Any) -> Any:
        """One heartbeat; None if the process died under it."""
        try:
            return self.raw.call(68, 1, group_id=GROUP, member_id=self.member_id, **fields)
        except OSError:
            self.unanswered += 1
            self.raw.close()
            self.raw = self.log.connect()
            return None

    def full(self) -> dict[str, Any]:
        has = [{"topic_id": self.topic_id, "partitions": sorted(self.owned)}] if self.owned else []
        return {"rebalance_timeout": 60_000, "subscribed_topic_names": [TOPIC], "topic_partitions": has}

    def beat(self, *, full: bool) -> None:
        nothing = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
        answer = self.call(member_epoch=self.epoch, **(self.full() if full else nothing))
        while answer is None:  # after an error a client tells everything
            answer = self.call(member_epoch=self.epoch, **self.full())
        codes = codes_of(answer)
        if codes & RETRIED:
            return
        if codes:
            assert codes <= {Code.fenced_member_epoch, Code.unknown_member_id}, codes
            self.fenced += self.unanswered < 2
            self.ledger.give_up(self.member_id, self.owned)
            self.new()
            return
        self.beats += 1
        self.unanswered, self.epoch = 0, answer.member_epoch
        self.settled = answer.assignment is None
        if answer.assignment is not None:
            told = {number for each in answer.assignment.topic_partitions for number in each.partitions}
            self.settled = told == self.owned
            self.ledger.give_up(self.member_id, self.owned - told)
            self.ledger.take(self.member_id, told - self.owned)
            self.owned = told

    def leave(self) -> None:
        self.ledger.give_up(self.member_id, self.owned)
        while (answer := self.call(member_epoch=-1, **self.full())) is None:
            continue
        assert codes_of(answer) <= {Code.unknown_member_id}, "it has left before the process died"
        self.new()


def kill_again_and_again(log: LogProcess, kills: int) -> None:
    with log.connect() as raw:
        raw.create_topic(TOPIC, PARTITIONS)
    ledger, chance = Ledger(), random.Random(1)
    members = [Member(log, ledger, seed) for seed in range(5)]
    for member in members:
        member.start()

    def all_are_told() -> None:
        before = [member.beats for member in members]
        wait_until(
            lambda: all(member.failure or member.beats > count for member, count in zip(members, before, strict=True)),
            "everybody has been told something",
        )

    for _ in range(kills):
        all_are_told()
        time.sleep(chance.uniform(0, 0.4))  # anywhere in their rebalances
        log.kill()
        log.start()
    all_are_told()
    for member in members:
        member.restless = False
    wait_until(lambda: sorted(ledger.readers()) == list(range(PARTITIONS)), "everything is read")
    with log.connect() as raw:
        (group,) = raw.call(69, 1, group_ids=[GROUP]).groups
        said = log.said.read_text()[-2000:]
    for member in members:
        member.stop.set()
    for member in members:
        member.join(STARTED_SECONDS)
        assert member.failure is None, (member.failure, said)
        assert not member.is_alive()
    assert ledger.conflicts == []
    assert sum(member.fenced for member in members) == 0
    assert {each.member_id for each in group.members} == {member.member_id for member in members}
    assert group.error_code == Code.none


def test_killed_in_the_middle_of_rebalances(log: LogProcess) -> None:
    kill_again_and_again(log, 4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_many_times_in_the_middle_of_rebalances(log: LogProcess) -> None:
    kill_again_and_again(log, 60)
