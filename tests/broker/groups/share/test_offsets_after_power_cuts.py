"""Offsets of a share group are set and deleted while members come and go, and the power is cut at any moment.

What was answered is there; of what was not, each partition may be as before or as asked for. A partition with state is
one that the group says it has state of, and nothing is left half deleted.
"""

import asyncio
import contextlib
from random import Random

import pytest

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.share.group import JOIN, LEAVE, Heartbeat
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.core import ManualClock
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.support.broker import CONFIG, restarted, start, stop

TOPIC, PARTITIONS = "facts", 3


class Desk:
    def __init__(self, root, seed):
        self.random = Random(seed)
        self.choose = adversary(seed)
        self.clock = ManualClock()
        self.disk = SimulatedDisk(root)
        self.root = root
        self.possible = [{None} for _ in range(PARTITIONS)]
        self.next = 0
        self.told = set()  # what calls came to

    async def open(self):
        self.broker = await start(self.root, self.clock, CONFIG, disk=self.disk)
        await self.broker.topics.create(TOPIC, PARTITIONS, {})
        topic_id = self.broker.topics.by_name(TOPIC).topic_id
        self.keys = [PartitionKey("g", topic_id, number) for number in range(PARTITIONS)]

    @property
    def share(self):
        return self.broker.groups.share

    def call(self):
        """Something of the administrator's, and what it makes of each partition."""
        kind = self.random.choice(("set", "set", "delete", "delete group"))
        if kind == "set":
            self.next += 1
            chosen = self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))
            call = self.share.set_offsets("g", {self.keys[number]: self.next for number in chosen})
            return call, dict.fromkeys(chosen, self.next)
        nothing = dict.fromkeys(range(PARTITIONS))
        if kind == "delete":
            return self.share.delete_offsets("g", [self.keys[0].topic_id]), nothing
        return self.broker.groups.delete_group("g"), nothing

    async def beat(self, epoch):
        topics = (TOPIC,) if epoch == JOIN else None
        await self.share.heartbeat("g", Heartbeat(member_id="m", epoch=epoch, topics=topics))

    async def step(self, *, cut):
        """A call, with a member that comes or goes at any point of it; the power is cut in the middle, or not."""
        call, after = self.call()
        doing = asyncio.ensure_future(call)
        others = []
        for _ in range(self.random.randint(0, 6)):
            if self.random.random() < 0.3:
                others.append(asyncio.ensure_future(self.beat(self.random.choice((JOIN, LEAVE)))))
            await asyncio.sleep(self.random.choice((0, 0, 0.001)))
        if cut:
            image = self.disk.after_power_cut(self.choose)
            is_answered = doing.done()
            with contextlib.suppress(Exception):
                await stop(self.broker)
        results = await asyncio.gather(doing, *others, return_exceptions=True)
        failed = isinstance(results[0], BaseException)
        self.told.add(type(results[0]).__name__)
        for number, value in after.items():
            if not (cut and not is_answered):
                self.possible[number] = self.possible[number] if failed else {value}
            else:
                self.possible[number] |= {value}
        if cut:
            self.disk = image
            self.broker = await restarted(self.broker, self.clock, image)
        self.check()
        with contextlib.suppress(GroupError):
            await self.beat(LEAVE)

    def check(self):
        group = self.share.get("g")
        tracked = (
            set() if group is None else {n for each in group.state_partitions.initialized for n in each.partitions}
        )
        for number, key in enumerate(self.keys):
            state = self.share.persister.get(key)
            found = None if state is None else state.start_offset
            assert found in self.possible[number], (number, found, self.possible[number])
            assert found is None or number in tracked
            self.possible[number] = {found}
        assert group is None or group.state_partitions.deleting == ()


@pytest.mark.parametrize("seed", range(4))
def test_what_was_answered_is_there(tmp_path, seed):
    run(tmp_path, [seed])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_was_answered_is_there_many_times(tmp_path):
    run(tmp_path, range(100, 200))


def run(root, seeds):
    async def story(seed):
        desk = Desk(root / str(seed), seed)
        (root / str(seed)).mkdir()
        await desk.open()
        for _ in range(25):
            await desk.step(cut=desk.random.random() < 0.3)
        await stop(desk.broker)
        return desk.told

    told = set().union(*(asyncio.run(story(seed)) for seed in seeds))
    assert {"NoneType", "dict", "UnknownGroup"} <= told, "all of it was tried"
