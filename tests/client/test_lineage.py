"""Against a model: every record of a derived topic knows from which records of the sources it was made."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client import lineage
from mainstem.client.basis import reaches
from mainstem.client.lineage import Lineage, Oldest
from mainstem.client.progress import Marker, Progress

PARTITIONS = 2
JOBS = {  # output -> (job, version, streams)
    "enriched": ("enriched", "1", ("flights",)),
    "enriched.v2": ("enriched", "2", ("flights",)),
    "hourly": ("hourly", "1", ("enriched",)),
    "joined": ("joined", "1", ("enriched", "weather")),
    "twice": ("twice", "1", ("hourly", "joined", "flights")),
}
SOURCES = ("flights", "weather", "planes")


def entry_of(output, **more):
    job, version, streams = JOBS[output]
    inputs = {each: each for each in (*streams, "planes")}
    return job, {"versions": {version: {"output": output, "inputs": inputs, "tables": ["planes"]}}} | more


class World:
    """Topics as lists of the origins of their records; jobs that read and write them in batches of random sizes."""

    def __init__(self, seed, told=lambda _: True):
        self.random, self.told = random.Random(seed), told
        self.topics = {name: [[] for _ in range(PARTITIONS)] for name in (*SOURCES, *JOBS)}
        self.read = {output: {each: [0] * PARTITIONS for each in streams} for output, (*_, streams) in JOBS.items()}
        self.batches, self.ends = dict.fromkeys(JOBS, 0), {output: {} for output in JOBS}
        self.lineage = Lineage()
        for output in JOBS:
            self.lineage.see_job(*entry_of(output))

    def step(self):
        name = self.random.choice((*SOURCES, *JOBS))
        if name in SOURCES:
            partition = self.random.randrange(PARTITIONS)
            records = self.topics[name][partition]
            records.append({(name, partition, len(records))})
        else:
            self.run(name)

    def run(self, output, *, all_of_it=False):
        job, version, streams = JOBS[output]
        made, ends = [], self.ends[output]
        for each in streams:
            for partition, records in enumerate(self.topics[each]):
                start = self.read[output][each][partition]
                end = len(records) if all_of_it else self.random.randint(start, len(records))
                made += records[start:end]
                self.read[output][each][partition] = end
        for origins in made:
            if self.random.random() < 0.8:  # others are filtered, or wait in a window
                partition = self.random.randrange(PARTITIONS)
                self.topics[output][partition].append(origins)
                ends[partition] = len(self.topics[output][partition])
        basis = {each: dict(enumerate(self.read[output][each])) for each in streams}
        progress = Progress(job, version, self.batches[output], basis, {}, {output: dict(ends)} if ends else {})
        self.batches[output] += 1
        if self.told(progress):
            self.lineage.see(progress)

    def position(self):
        ends = {name: [len(records) for records in topic] for name, topic in self.topics.items()}
        return {name: {p: self.random.randint(0, end) for p, end in enumerate(each)} for name, each in ends.items()}

    def below(self, topic, position):
        """The records of the sources from which what lies below `position` was made."""
        return {
            origin
            for partition, records in enumerate(self.topics[topic])
            for origins in records[: position.get(partition, 0)]
            for origin in origins
        }


def is_below(origin, positions):
    topic, partition, offset = origin
    return offset < positions.get(topic, {}).get(partition, 0)


@given(st.integers(0, 2**32), st.integers(0, 150))
def test_what_is_needed_has_all_that_was_made_of_what_is_asked_for(seed, steps):
    world = World(seed)
    for _ in range(steps):
        world.step()
    for topic in (*SOURCES, *JOBS):
        asked = {name: each for name, each in world.position().items() if name in SOURCES}
        needed = world.lineage.needed(topic, asked)
        if needed is None:
            continue
        above = [
            origin
            for partition, records in enumerate(world.topics[topic])
            for origins in records[needed.get(partition, 0) :]
            for origin in origins
        ]
        assert not [origin for origin in above if is_below(origin, asked)]


@given(st.integers(0, 2**32), st.integers(0, 150))
def test_what_was_seen_is_no_less_than_what_the_records_were_made_of(seed, steps):
    world = World(seed)
    for _ in range(steps):
        world.step()
    position = world.position()
    for topic in JOBS:
        seen = world.lineage.seen(topic, position[topic])
        assert all(is_below(origin, seen) for origin in world.below(topic, position[topic]))


@given(st.integers(0, 2**32), st.integers(0, 150), st.integers(0, 150))
def test_what_is_known_was_made_of_no_more_than_what_was_seen_while_batches_are_still_to_be_told(seed, steps, told):
    world = World(seed, told=lambda _: sum(world.batches.values()) <= told)
    for _ in range(steps):
        world.step()
    position = world.position()
    for topic in JOBS:
        if world.lineage.knows(topic, position[topic]):
            seen = world.lineage.seen(topic, position[topic])
            assert all(is_below(origin, seen) for origin in world.below(topic, position[topic]))


@given(st.integers(0, 2**32), st.integers(1, 150))
def test_who_has_seen_one_version_does_not_go_back_with_another(seed, steps):
    world = World(seed)
    for _ in range(steps):
        world.step()
    position = world.position()["enriched"]
    needed = world.lineage.needed("enriched.v2", {"enriched": position})
    if needed is not None:
        behind = [
            origin
            for partition, records in enumerate(world.topics["enriched.v2"])
            for origins in records[needed.get(partition, 0) :]
            for origin in origins
        ]
        assert not set(behind) & world.below("enriched", position)


@pytest.fixture
def chain():
    found = Lineage()
    found.see_job(*entry_of("enriched"))
    found.see_job(*entry_of("hourly"))
    return found


def test_a_position_is_not_known_before_every_job_on_the_way_has_read_so_far(chain):
    assert chain.needed("hourly", {"flights": {0: 10}}) is None
    chain.see(Progress("enriched", "1", 0, {"flights": {0: 10}}, {}, {"enriched": {1: 4}}))
    assert chain.needed("enriched", {"flights": {0: 10}}) == {1: 4}
    assert chain.needed("hourly", {"flights": {0: 10}}) is None
    chain.see(Progress("hourly", "1", 0, {"enriched": {1: 3}}, {}, {"hourly": {0: 1}}))
    assert chain.needed("hourly", {"flights": {0: 10}}) is None
    chain.see(Progress("hourly", "1", 1, {"enriched": {1: 4}}, {}, {"hourly": {0: 1}}))
    assert chain.needed("hourly", {"flights": {0: 10}}) == {0: 1}  # the second wrote nothing
    assert chain.needed("hourly", {"flights": {0: 11}}) is None


def test_topics_that_it_is_not_made_of_do_not_matter(chain):
    assert chain.needed("hourly", {"weather": {0: 99}, "planes": {0: 99}}) == {}
    assert chain.needed("weather", {"flights": {0: 99}, "weather": {0: 2}}) == {0: 2}
    assert chain.upstream("hourly") == {"hourly", "enriched", "flights"}


def test_a_position_of_the_topic_itself_holds_whatever_it_is_made_of(chain):
    chain.see(Progress("enriched", "1", 0, {"flights": {0: 10}}, {}, {"enriched": {1: 4}}))
    assert chain.needed("enriched", {"enriched": {0: 7, 1: 2}, "flights": {0: 10}}) == {0: 7, 1: 4}


def test_a_job_of_several_outputs_leads_to_each_of_them_in_all_of_its_versions():
    chain = Lineage()
    about = {"inputs": {"orders": "orders"}}
    versions = {
        "1": about | {"output": "paid", "also": {"refunds": "refunds"}},
        "2": about | {"output": "paid.v2", "also": {"refunds": "refunds.v2"}},
    }
    chain.see_job("paid", {"versions": versions})
    ends = {"paid": {0: 7}, "refunds": {0: 3}}
    chain.see(Progress("paid", "1", 0, {"orders": {0: 10}}, {}, ends))
    assert (chain.needed("refunds", {"orders": {0: 10}}), chain.needed("paid", {"orders": {0: 9}})) == ({0: 3}, {0: 7})
    assert chain.seen("refunds", {0: 3}) == {"refunds": {0: 3}, "orders": {0: 10}}
    assert chain.needed("refunds.v2", {"refunds": {0: 3}}) is None  # version 2 has not read so far
    chain.see(Progress("paid", "2", 0, {"orders": {0: 12}}, {}, {"refunds.v2": {0: 4}}))
    assert chain.needed("refunds.v2", {"refunds": {0: 3}}) == {0: 4}
    assert chain.upstream("refunds.v2") == {"refunds.v2", "refunds", "orders"}


def test_tables_are_seen_and_not_waited_for(chain):
    chain.see(Progress("enriched", "1", 0, {"flights": {0: 10}}, {"planes": {0: 3}}, {"enriched": {1: 4}}))
    assert chain.seen("enriched", {1: 4}) == {"enriched": {1: 4}, "flights": {0: 10}, "planes": {0: 3}}
    assert chain.needed("enriched", {"planes": {0: 99}}) == {}


def test_it_is_not_known_what_a_batch_was_made_of_before_it_is_told(chain):
    chain.see(Progress("enriched", "1", 0, {"flights": {0: 10}}, {}, {"enriched": {1: 4}}))
    assert chain.knows("enriched", {0: 0, 1: 4})
    assert chain.knows("flights", {0: 99})  # nobody makes it
    assert not chain.knows("enriched", {1: 5})
    assert not chain.knows("enriched", {0: 1, 1: 4})
    assert chain.told("enriched") == {1: 4}
    chain.see(Progress("enriched", "1", 1, {"flights": {0: 20}}, {}, {"enriched": {1: 5}}))
    assert chain.knows("enriched", {1: 5})


def test_what_no_batch_has_written_is_known_when_all_are_told(chain):
    chain.see(Progress("enriched", "1", 0, {"flights": {0: 10}}, {}, {"enriched": {1: 4}}))
    shown = {"enriched": {0: 2, 1: 4}, "hourly": {0: 1}, "planes": {0: 9}}
    chain.told_all(shown)
    assert all(chain.knows(topic, position) for topic, position in shown.items())
    assert chain.seen("enriched", {0: 2, 1: 4})["flights"] == {0: 10}
    assert chain.seen("hourly", {0: 1}) == {"hourly": {0: 1}}
    assert not chain.knows("enriched", {0: 3})
    assert chain.told("planes") == {}


def test_what_somebody_else_wrote_beside_one_version_holds_up_no_other_one(chain):
    chain.see_job(*entry_of("enriched.v2"))
    beside = {"enriched": {0: 7, 1: 4}}
    assert chain.needed("enriched.v2", beside) is None
    chain.told_all(beside)
    assert chain.needed("enriched.v2", beside) == {}
    for number, (version, output) in enumerate((("1", "enriched"), ("2", "enriched.v2"))):
        chain.see(Progress("enriched", version, 0, {"flights": {0: 10 + number}}, {}, {output: {1: 4}}))
    assert chain.needed("enriched.v2", beside) == {1: 4}
    more = {"enriched": {0: 8, 1: 6}}
    chain.told_all(more)
    assert chain.needed("enriched.v2", more) == {1: 4}
    chain.see(Progress("enriched", "1", 1, {"flights": {0: 20}}, {}, {"enriched": {1: 9}}))
    assert chain.needed("enriched.v2", more) == {1: 4}  # it does not go on with the other one
    assert chain.needed("enriched.v2", {"enriched": {0: 9}}) is None


def retired(output, *left):
    """The entry of a job once a version is retired, and these outputs are of versions that are left."""
    job, entry = entry_of(output)
    return job, {"versions": {JOBS[each][1]: entry_of(each)[1]["versions"][JOBS[each][1]] for each in left}} | {
        "retired": entry["versions"]
    }


def test_of_the_last_version_once_it_is_retired_all_is_known(chain):
    assert not chain.knows("enriched", {0: 1})
    chain.see_job(*retired("enriched"))
    assert chain.knows("enriched", {0: 1})


def test_a_version_that_is_retired_beside_another_covers_no_more_than_it_did_also_for_who_comes_later(chain):
    told = Progress("enriched", "1", 0, {"flights": {0: 10}}, {}, {"enriched": {0: 4}})
    later = Lineage()
    later.see(told)
    chain.see(told)
    for each in (chain, later):
        each.see_job(*retired("enriched", "enriched.v2"))
        assert each.needed("enriched", {"flights": {0: 10}}) == {0: 4}
        assert each.needed("enriched", {"flights": {0: 11}}) is None
        assert each.seen("enriched", {0: 4})["flights"] == {0: 10}
        assert each.needed("enriched.v2", {"enriched": {0: 4}}) is None  # nor has the other one read as far as it
        each.see(Progress("enriched", "2", 0, {"flights": {0: 10}}, {}, {"enriched.v2": {0: 7}}))
        assert each.needed("enriched.v2", {"enriched": {0: 4}}) == {0: 7}


def test_a_topic_of_a_version_that_is_retired_may_be_another_jobs():
    renamed = Lineage()
    renamed.see_job("again", {"versions": entry_of("enriched")[1]["versions"]})
    renamed.see_job(*retired("enriched", "enriched.v2"))
    renamed.see(Progress("again", "1", 0, {"flights": {0: 10}}, {}, {"enriched": {0: 4}}))
    assert renamed.needed("enriched", {"flights": {0: 10}}) == {0: 4}


def test_a_restart_begins_with_the_last_commit_and_passes_over_what_that_had(chain):
    marker = Marker("enriched", "1", "id", 7, {"flights": {"flights": {0: 10}}}, ends={"enriched": {1: 4}})
    chain.start_from(marker)
    chain.see(Progress("enriched", "1", 6, {"flights": {0: 8}}, {}, {"enriched": {1: 2}}))
    assert chain.needed("enriched", {"flights": {0: 1}}) == {1: 4}
    assert chain.forgotten("enriched", {"flights": {0: 1}}) == Oldest("enriched", 7)
    chain.see(Progress("enriched", "1", 8, {"flights": {0: 12}}, {}, {"enriched": {1: 5}}))
    assert chain.needed("enriched", {"flights": {0: 11}}) == {1: 5}
    assert chain.forgotten("enriched", {"flights": {0: 11}}) is None


def test_the_tables_that_the_last_commit_was_joined_with_were_seen(chain):
    basis, ends = {"flights": {"flights": {0: 10}}}, {"enriched": {1: 4}}
    chain.start_from(Marker("enriched", "1", "id", 7, basis, ends=ends, tables={"planes": {0: 3}}))
    assert chain.seen("enriched", {1: 4}) == {"enriched": {1: 4}, "flights": {0: 10}, "planes": {0: 3}}


@given(st.integers(0, 2**32), st.integers(0, 150), st.integers(0, 170))
def test_who_comes_late_and_hears_of_the_last_batches_only_waits_for_nothing_that_is_not_there(seed, steps, missed):
    world, heard = World(seed), []
    world.told = heard.append  # to the one who comes late
    for _ in range(steps):
        world.step()
    for output in JOBS:
        world.run(output, all_of_it=True)
    late = Lineage()
    for output in JOBS:
        late.see_job(*entry_of(output))
    for progress in heard[missed:]:
        late.see(progress)
    for each in {(each.job, each.version): each for each in heard}.values():
        late.start_from(Marker(each.job, each.version, "id", each.batch, {"s": each.basis}, ends=each.ends))
    ends = {name: {p: len(records) for p, records in enumerate(topic)} for name, topic in world.topics.items()}
    for topic in JOBS:
        needed = late.needed(topic, ends)
        assert needed is not None
        assert reaches(ends[topic], needed)


@given(st.integers(0, 2**32), st.integers(0, 150), st.integers(0, 170), st.booleans())
def test_who_comes_late_knows_of_which_positions_it_has_forgotten_the_batch(seed, steps, missed, has_markers):
    world, heard = World(seed), []
    world.told = lambda progress: heard.append(progress) or True
    for _ in range(steps):
        world.step()
    late = Lineage()
    for output in JOBS:
        late.see_job(*entry_of(output))
    for progress in heard[missed:]:
        late.see(progress)
    if has_markers:
        for each in {(each.job, each.version): each for each in heard}.values():
            late.start_from(Marker(each.job, each.version, "id", each.batch, {"s": each.basis}, ends=each.ends))
    positions = world.position()
    for topic in JOBS:
        exact = world.lineage.needed(topic, positions)
        assert world.lineage.forgotten(topic, positions) is None
        needed = late.needed(topic, positions)
        if needed is not None and late.forgotten(topic, positions) is None:
            assert needed == exact


def test_of_a_position_before_the_oldest_batch_it_is_told_that_its_batch_is_forgotten(chain):
    for number in (7, 8):
        chain.see(Progress("enriched", "1", number, {"flights": {0: number}}, {}, {"enriched": {0: number}}))
    assert chain.needed("enriched", {"flights": {0: 1}}) == {0: 7}
    assert chain.forgotten("enriched", {"flights": {0: 1}}) == Oldest("enriched", 7)
    assert chain.forgotten("enriched", {"flights": {0: 7}}) == Oldest("enriched", 7)  # batch 6 may have read so far
    assert chain.forgotten("enriched", {"flights": {0: 8}}) is None
    assert chain.forgotten("enriched", {"flights": {0: 9}}) is None  # not read yet
    assert chain.forgotten("enriched", {"weather": {0: 1}}) is None
    assert chain.forgotten("enriched", {"enriched": {0: 7}, "flights": {0: 1}}) is None  # it has seen that batch
    assert chain.forgotten("enriched", {"enriched": {0: 6}, "flights": {0: 1}}) == Oldest("enriched", 7)
    chain.see(Progress("hourly", "1", 0, {"enriched": {0: 8}}, {}, {"hourly": {0: 1}}))
    assert chain.forgotten("hourly", {"enriched": {0: 1}}) is None  # the first batch of all
    assert chain.forgotten("hourly", {"flights": {0: 8}}) is None
    assert chain.forgotten("hourly", {"flights": {0: 1}}) == Oldest("enriched", 7)
    chain.see_job(*entry_of("enriched.v2"))
    chain.see(Progress("enriched", "2", 0, {"flights": {0: 9}}, {}, {"enriched.v2": {0: 1}}))
    assert chain.forgotten("enriched.v2", {"enriched": {0: 8}}) is None
    assert chain.forgotten("enriched.v2", {"enriched": {0: 1}}) == Oldest("enriched", 7)


def test_batches_between_those_that_are_known_and_the_last_commit_count_though_they_are_read_after_it(chain):
    """A transaction of somebody else may hold them back."""
    progress = [
        Progress("enriched", "1", n, {"flights": {0: 10 * n + 10}}, {}, {"enriched": {0: n + 1}}) for n in range(5)
    ]
    chain.see(progress[0])
    chain.start_from(Marker("enriched", "1", "id", 4, {"s": progress[4].basis}, ends=progress[4].ends))
    chain.see(progress[2])
    assert chain.needed("enriched", {"flights": {0: 11}}) == {0: 3}
    assert chain.forgotten("enriched", {"flights": {0: 11}}) == Oldest("enriched", 2)
    for each in (progress[1], progress[3], progress[4]):
        chain.see(each)
    assert [chain.needed("enriched", {"flights": {0: 10 * n + 1}}) for n in range(5)] == [{0: n + 1} for n in range(5)]
    assert all(chain.forgotten("enriched", {"flights": {0: 10 * n + 1}}) is None for n in range(5))
    assert chain.told("enriched") == {0: 5}


def test_batches_that_say_where_they_wrote_alone_are_put_together(chain):
    """As they were before each said where all of its output ends."""
    chain.see(Progress("enriched", "1", 0, {"flights": {0: 10}}, {}, {"enriched": {0: 4}}))
    chain.see(Progress("enriched", "1", 1, {"flights": {0: 20}}, {}, {"enriched": {1: 3}}))
    assert chain.needed("enriched", {"flights": {0: 20}}) == {0: 4, 1: 3}
    assert chain.seen("enriched", {0: 4, 1: 3})["flights"] == {0: 20}


def test_nothing_is_waited_for_once_the_last_version_is_retired(chain):
    chain.see_job(*retired("enriched"))
    assert chain.needed("enriched", {"flights": {0: 10}}) == {}
    chain.see_job(*retired("enriched", "enriched.v2"))
    assert chain.needed("enriched", {"flights": {0: 10}}) is None


def job_of(output, *inputs):
    return {"versions": {"1": {"output": output, "inputs": {each: each for each in inputs}}}}


def test_a_job_that_reads_what_it_writes_comes_to_an_end():
    own = Lineage()
    own.see_job("own", job_of("own", "own", "flights"))
    assert own.needed("own", {"weather": {0: 1}}) == {}
    for number in range(3):
        basis = {"flights": {0: 10 * (number + 1)}, "own": {0: number}}
        own.see(Progress("own", "1", number, basis, {}, {"own": {0: number + 1}}))
    assert own.needed("own", {"flights": {0: 11}}) == {0: 2}
    assert own.needed("own", {"own": {0: 3}, "flights": {0: 11}}) == {0: 3}
    assert own.seen("own", {0: 2}) == {"own": {0: 2}, "flights": {0: 20}}


def test_jobs_of_projects_that_read_each_other_come_to_an_end(monkeypatch):
    """Nobody sees both projects when one of them is started."""
    monkeypatch.setattr(lineage, "KEPT_BATCHES", 3)
    circle = Lineage()
    circle.see_job("there", job_of("there", "back", "flights"))
    circle.see_job("back", job_of("back", "there"))
    assert circle.needed("back", {"weather": {0: 1}}) == {}
    assert circle.needed("there", {"flights": {0: 1}}) is None
    for number in range(100):
        basis = {"flights": {0: 10 * (number + 1)}, "back": {0: number}}
        circle.see(Progress("there", "1", number, basis, {}, {"there": {0: number + 1}}))
        circle.see(Progress("back", "1", number, {"there": {0: number + 1}}, {}, {"back": {0: number + 1}}))
    assert circle.needed("back", {"flights": {0: 985}}) == {0: 99}
    assert circle.needed("there", {"flights": {0: 985}}) == {0: 99}
    assert circle.seen("back", {0: 99}) == {"back": {0: 99}, "there": {0: 99}, "flights": {0: 990}}
    assert circle.needed("there", {"there": {0: 100}, "flights": {0: 985}}) == {0: 100}  # it waits for no next round
    assert circle.seen("there", {0: 1})["flights"][0] >= 10  # of the oldest batches that are kept
    assert circle.upstream("back") == {"back", "there", "flights"}


@pytest.mark.parametrize(
    "entry",
    [{"versions": {"1": {}, "2": None, "3": {"output": "o", "inputs": ["flights"]}}}, {"versions": [1], "retired": 7}],
)
def test_what_somebody_else_says_of_jobs_counts_for_nothing(chain, entry):
    chain.see_job("enriched", entry)
    chain.see_job("strange", entry)
    assert chain.upstream("enriched") == {"enriched", "flights"}
    assert chain.upstream("o") == {"o"}


def test_a_batch_that_is_told_before_its_job_counts_when_the_job_is_known():
    early = Lineage()
    early.see(Progress("enriched", "1", 0, {"flights": {0: 10}}, {}, {"enriched": {1: 4}}))
    early.see(Progress("enriched", "1", 1, {"flights": {0: 11}}, {}, {"enriched": {1: 4}}))
    early.see_job(*entry_of("enriched"))
    assert early.needed("enriched", {"flights": {0: 11}}) == {1: 4}


def test_old_batches_are_let_go_and_count_as_the_oldest_that_is_kept(chain, monkeypatch):
    monkeypatch.setattr(lineage, "KEPT_BATCHES", 5)
    for number in range(100):
        chain.see(Progress("enriched", "1", number, {"flights": {0: number + 1}}, {}, {"enriched": {0: number + 1}}))
        assert len(chain._by_output["enriched"].batches) < 10
    oldest = chain.needed("enriched", {"flights": {0: 1}})[0]
    assert 90 < oldest <= 96
    assert chain.forgotten("enriched", {"flights": {0: 1}}) == Oldest("enriched", oldest - 1)
    assert chain.forgotten("enriched", {"flights": {0: 100}}) is None
    assert chain.needed("enriched", {"flights": {0: 100}}) == {0: 100}
