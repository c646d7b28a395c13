"""Patterns of events: what is told depends on the times of the steps, and not on the order they come in."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BASKETS, COPIES = 60, 3


def some_steps(chance):
    """Of one basket, within three quarters of an hour: many at once, some at the last moment, some too late."""
    return [
        (chance.randrange(45), chance.choice(["filled", "filled", "paid", "paid", "cancelled"]))
        for _ in range(chance.randrange(1, 10))
    ]


def bought(steps):
    """When it was filled and paid, by looking at every pair: nothing else stands between the two, but what does not
    matter, and no filling is paid twice.
    """
    ordered = sorted(steps)
    found = []
    for last, (paid_at, kind) in enumerate(ordered):
        if kind != "paid":
            continue
        before = [n for n in range(last) if ordered[n][1] == "filled"]
        if not before:
            continue
        first = before[-1]
        between = {kind for _, kind in ordered[first + 1 : last]}
        if "cancelled" not in between and "paid" not in between and paid_at - ordered[first][0] <= 30:
            found.append((ordered[first][0], paid_at))
    return found


def arriving(baskets, chance):
    """The steps in an order in which each comes less than ten minutes of its time behind another one, as the job's
    watermark has it; `baskets` by their numbers.
    """
    steps = [
        {"basket": basket, "kind": kind, "at": NOON + timedelta(minutes=minutes)}
        for basket, each in baskets.items()
        for minutes, kind in each
    ]
    return sorted(steps, key=lambda step: step["at"] + timedelta(minutes=chance.uniform(0, 10)))


def test_any_order_of_the_steps_gives_the_same(mainstem_jobs):
    """The same baskets several times over in one run, each time in an order of its own, cut into batches anywhere."""
    chance = random.Random(7)
    baskets = {
        (copy, number): steps for number in range(BASKETS) for steps in [some_steps(chance)] for copy in range(COPIES)
    }
    steps = arriving({copy * BASKETS + number: each for (copy, number), each in baskets.items()}, chance)
    assert steps != sorted(steps, key=lambda step: step["at"])
    cuts = [0, *sorted(chance.sample(range(1, len(steps)), 6)), len(steps)]
    with mainstem_jobs.start("bought") as job:
        out = [row for start, end in pairwise(cuts) for row in job.feed(steps=steps[start:end])] + job.finish()
        assert job.late == []
    expected = [
        (copy * BASKETS + number, minute(filled_at), minute(paid_at))
        for (copy, number), each in baskets.items()
        for filled_at, paid_at in bought(each)
    ]
    assert sorted((row["basket"], row["filled_at"], row["paid_at"]) for row in out) == sorted(expected)
    assert 0 < len({basket for basket, _, _ in expected}) < COPIES * BASKETS


def minute(minutes):
    """A time as rows that come out have it."""
    return NOON + timedelta(minutes=minutes)


def test_nothing_is_told_before_no_step_can_come_between(mainstem_jobs):
    def step(minutes, kind):
        return {"basket": 1, "kind": kind, "at": NOON + timedelta(minutes=minutes)}

    with mainstem_jobs.start("bought") as job:
        assert job.feed(steps=[step(20, "paid"), step(15, "filled")]) == []
        assert job.feed(steps=[step(18, "cancelled")]) == []
        assert job.feed(steps=[step(22, "filled"), step(25, "paid")]) == []
        assert job.advance(NOON + timedelta(minutes=34)) == []
        assert [row["paid_at"] for row in job.advance(NOON + timedelta(minutes=36))] == [minute(25)]
