"""The decision table, tried out whole, and held to what it is for: no record lost, none written twice."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.progress import Marker
from mainstem.process.sink_decision import Decision, SinkRefused, decide

OURS, OTHER = "ours", "another"
AT = {"s": {"t": {0: 10, 1: 20}}}
FURTHER = {"s": {"t": {0: 10, 1: 21}}}
RUN, SKIP, REFUSE = Decision.RUN, Decision.SKIP, "refuse"


def outcome(marker, **arguments):
    try:
        return decide(marker, **arguments)
    except SinkRefused:
        return REFUSE


def marker(batch, checkpoint=OURS):
    return Marker("job", "v1", checkpoint, batch, AT)


def expected(has_marker, same_checkpoint, distance, same_end, start):
    """The table of the module's docstring, written once more; `distance` is N - M, or N without a marker."""
    if not has_marker:
        return RUN if distance == 0 else REFUSE
    if not same_checkpoint:
        return REFUSE
    return {
        (1, True): RUN if start in (None, AT) else REFUSE,
        (1, False): RUN if start in (None, AT) else REFUSE,
        (0, True): SKIP,
        (0, False): REFUSE,
    }.get((distance, same_end), REFUSE)


CASES = [
    *product([True], [True, False], [-3, -1, 0, 1, 2, 9], [True, False], [None, AT, FURTHER]),
    *product([False], [True], [0, 1, 2, 9], [True], [None, AT]),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_of_the_table(case):
    has_marker, same_checkpoint, distance, same_end, start = case
    found = outcome(
        marker(5) if has_marker else None,
        checkpoint=OURS if same_checkpoint else OTHER,
        batch=5 + distance if has_marker else distance,
        end_offsets=AT if same_end else FURTHER,
        start_offsets=start,
    )
    assert found == expected(*case)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"batch": 4}, "was rolled back"),
        ({"batch": 7}, "the log was rolled back"),
        (
            {"batch": 5, "end_offsets": FURTHER},
            r"up to s/t-0:10, s/t-1:20, the checkpoint plans it up to s/t-0:10, s/t-1:21",
        ),
        ({"checkpoint": OTHER}, "belongs to checkpoint ours, this is checkpoint another"),
        ({"batch": 6, "start_offsets": FURTHER}, "batch 6 starts at"),
    ],
)
def test_a_refusal_says_what_was_found_and_the_repair(arguments, says):
    with pytest.raises(SinkRefused, match=says) as refusal:
        decide(marker(5), **({"checkpoint": OURS, "batch": 5, "end_offsets": AT} | arguments))
    assert "bring back" in refusal.value.hint


def test_a_checkpoint_without_its_marker_is_refused():
    with pytest.raises(SinkRefused, match="the log has no commit of this job, its checkpoint has 3 batches"):
        decide(None, checkpoint=OURS, batch=3, end_offsets=AT)


class World:
    """A log and a checkpoint with one input partition. What happens: a batch is planned, run, committed, written down;
    the driver dies at any point; a power cut takes back what Spark did not sync; somebody rolls the checkpoint back."""

    def __init__(self):
        self.output = []  # input offsets, as often as they are visible
        self.marker = None
        self.plans = {}  # batch -> end
        self.synced = set()
        self.commits = set()
        self.refused = False

    def step(self, limit, stop_after):
        planned, written = max(self.plans, default=-1), max(self.commits, default=-1)
        batch = planned if planned > written else planned + 1
        start = self.plans.get(batch - 1, 0)
        end = self.plans.setdefault(batch, start + limit)
        ends, starts = {"s": {"t": {0: end}}}, {"s": {"t": {0: start}}}
        try:
            decision = decide(
                self.marker, checkpoint=OURS, batch=batch, end_offsets=ends, start_offsets=starts if batch else None
            )
        except SinkRefused:
            self.refused = True
            return
        if decision is RUN:
            if stop_after == "run":
                return
            self.synced.add(batch)
            if stop_after == "sync":
                return
            self.output += range(start, end)
            self.marker = Marker("job", "v1", OURS, batch, ends)
        if stop_after == "commit":
            return
        self.commits.add(batch)

    def power_cut(self, lost_plans, lost_commits):
        for batch in sorted(self.plans, reverse=True)[:lost_plans]:
            if batch not in self.synced:
                del self.plans[batch]
        for batch in sorted(self.commits, reverse=True)[:lost_commits]:
            self.commits.discard(batch)

    def roll_back(self, batches):
        for batch in sorted(self.plans, reverse=True)[:batches]:
            del self.plans[batch]
            self.commits.discard(batch)
            self.synced.discard(batch)


events = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 5), st.sampled_from(["run", "sync", "commit", "end"])),
    st.tuples(st.just("power_cut"), st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.just("roll_back"), st.integers(1, 3)),
)


@given(st.lists(events, max_size=30))
def test_whatever_happens_the_output_is_a_prefix_of_the_input_or_the_job_refuses(happenings):
    world = World()
    for name, *arguments in happenings:
        getattr(world, name)(*arguments)
        end = world.marker.end_offsets["s"]["t"][0] if world.marker else 0
        assert world.output == list(range(end))


@given(st.lists(events.filter(lambda event: event[0] != "roll_back"), max_size=30))
def test_crashes_and_power_cuts_alone_never_lead_to_a_refusal(happenings):
    world = World()
    for name, *arguments in happenings:
        getattr(world, name)(*arguments)
        assert not world.refused
