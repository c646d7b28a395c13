"""The log process dies in the middle of rebalances of a streams group: members go on with their epochs.

Members have tasks, come and go, and write into one ledger which active tasks they work on. When the process is gone
they wait for the next one and send their last heartbeat again, as Kafka Streams does. No task is ever in the ledger
twice, and a member that hears every second answer is never fenced.
"""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.wire.errors import Code
from tests.crash.test_consumer_groups import Ledger
from tests.crash.test_coordinators import STARTED_SECONDS, LogProcess
from tests.support.raw import RETRIED, codes_of
from tests.support.streams_groups import (
    DESCRIBE,
    HEARTBEAT,
    a_part,
    a_topic,
    a_topology,
    joins,
    lives,
    reports,
    tasks_of,
)
from tests.support.waiting import wait_until

GROUP, SOURCE, CHANGELOG = "words", "lines", "counts"
TASKS = 12
TOPOLOGY = a_topology(a_part("0", SOURCE, state_changelog_topics=[a_topic(CHANGELOG)]))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogProcess]:
    process = LogProcess(tmp_path)
    process.start()
    yield process
    process.kill()


class Member(threading.Thread):
    """A thread of Kafka Streams by hand."""

    def __init__(self, log: LogProcess, ledger: Ledger, seed: int) -> None:
        super().__init__(name=f"member-{seed}", daemon=True)
        self.log, self.ledger = log, ledger
        self.random = random.Random(seed)
        self.process_id = f"process-{seed % 3}"
        self.stop, self.restless = threading.Event(), True
        self.number = self.fenced = self.beats = 0
        self.failure: BaseException | None = None
        self.new()

    def new(self) -> None:
        self.number += 1
        self.member_id = f"{self.name}-{self.number}"
        self.epoch, self.unanswered = 0, 0
        self.active, self.standby = set[int](), set[int]()

    def run(self) -> None:
        self.raw = self.log.connect()
        try:
            while not self.stop.is_set():
                if self.epoch > 0 and self.restless and self.random.random() < 0.02:
                    self.leave()
                self.beat(full=self.random.random() < 0.7)
                time.sleep(self.random.uniform(0, 0.02))
        except BaseException as error:
            self.failure = error
        finally:
            self.raw.close()

    def call(self, request: dict[str, Any]) -> Any:
        """One heartbeat; None if the process died under it."""
        try:
            return self.raw.call(HEARTBEAT, 0, **request)
        except OSError:
            self.unanswered += 1
            self.raw.close()
            self.raw = self.log.connect()
            return None

    def request(self, *, full: bool) -> dict[str, Any]:
        if self.epoch == 0:
            return joins(GROUP, self.member_id, TOPOLOGY, process_id=self.process_id)
        has = reports(*({"0": numbers} if numbers else {} for numbers in (self.active, self.standby)))
        return lives(GROUP, self.member_id, self.epoch, **(has if full else {}))

    def beat(self, *, full: bool) -> None:
        answer = self.call(self.request(full=full))
        while answer is None:  # after an error a client tells everything
            answer = self.call(self.request(full=True))
        codes = codes_of(answer)
        if codes & RETRIED:
            return
        if codes:
            assert codes <= {Code.fenced_member_epoch, Code.unknown_member_id}, codes
            self.fenced += self.unanswered < 2
            self.ledger.give_up(self.member_id, self.active)
            self.new()
            return
        self.beats += 1
        self.unanswered, self.epoch = 0, answer.member_epoch
        if answer.active_tasks is not None:
            told = set(tasks_of(answer.active_tasks).get("0", ()))
            self.ledger.give_up(self.member_id, self.active - told)
            self.ledger.take(self.member_id, told - self.active)
            self.active, self.standby = told, set(tasks_of(answer.standby_tasks).get("0", ()))

    def leave(self) -> None:
        self.ledger.give_up(self.member_id, self.active)
        while (answer := self.call(lives(GROUP, self.member_id, -1))) is None:
            continue
        assert codes_of(answer) <= {Code.unknown_member_id}, "it has left before the process died"
        self.new()


def kill_again_and_again(log: LogProcess, kills: int) -> None:
    with log.connect() as raw:
        raw.create_topic(SOURCE, TASKS)
        setting = {"name": "streams.num.standby.replicas", "config_operation": 0, "value": "1"}
        raw.call(44, 1, resources=[{"resource_type": 32, "resource_name": GROUP, "configs": [setting]}])
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
    wait_until(lambda: sorted(ledger.readers()) == list(range(TASKS)), "every task is worked on")

    def described() -> Any:
        with log.connect() as raw:
            (group,) = raw.call(DESCRIBE, 0, group_ids=[GROUP], include_authorized_operations=False).groups
        return group

    wait_until(lambda: described().group_state == "Stable", "everybody has what it is to have")
    group, said = described(), log.said.read_text()[-2000:]
    for member in members:
        member.stop.set()
    for member in members:
        member.join(STARTED_SECONDS)
        assert member.failure is None, (member.failure, said)
        assert not member.is_alive()
    assert ledger.conflicts == []
    assert sum(member.fenced for member in members) == 0
    assert {each.member_id for each in group.members} == {member.member_id for member in members}
    copies = [number for member in members for number in member.standby]
    assert sorted(copies) == list(range(TASKS))


def test_killed_in_the_middle_of_rebalances(log: LogProcess) -> None:
    kill_again_and_again(log, 4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_many_times_in_the_middle_of_rebalances(log: LogProcess) -> None:
    kill_again_and_again(log, 60)
