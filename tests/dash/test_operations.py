import asyncio
import threading

import pytest

from mainstem.core import ManualClock, UserError
from mainstem.dash.operations import Done, Operations
from mainstem.dash.web import Busy


class Work:
    """Waits until it is told to end, as a cutover does for its version."""

    def __init__(self):
        self.ready, self.error = threading.Event(), None

    def run(self, kind, job, asked, going):
        going.tell(f"{kind} {job} waits")
        while not self.ready.is_set():
            going.pause(0.001)
        if self.error:
            raise self.error
        return Done([f"{asked.get('version', 'back')} is current"], "ms1.x")


def running(test):
    """`test` with operations, their work, and all that was told, as lists of (title, state, told)."""

    async def work():
        told, commands = [], Work()
        operations = Operations(
            commands, lambda all_: told.append([(e.title, e.state, e.told) for e in all_]), ManualClock(77)
        )
        async with asyncio.TaskGroup() as tasks:
            await test(operations, commands, tasks, told)
            operations.close()
        return operations.all, told

    return asyncio.run(work())


async def until(reached):
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0.001)


def test_it_tells_what_it_waits_for_and_what_became_of_it():
    async def test(operations, commands, tasks, told):
        begun = operations.start(tasks, "cutover", "sums", {"version": "2"})
        assert (begun.title, begun.state) == ("cutover of job sums to version 2", "running")
        await until(lambda: told[-1][0][2])
        commands.ready.set()
        await until(lambda: told[-1][0][1] == "done")

    (last,), told = running(test)
    assert [each[0][1:] for each in told] == [("running", ""), ("running", "cutover sums waits"), ("done", "")]
    assert (last.lines, last.basis, last.ended_ms) == (["2 is current"], "ms1.x", 77)


def test_pressing_twice_or_two_people_at_once_begin_it_once():
    async def test(operations, commands, tasks, _):
        operations.start(tasks, "cutover", "sums", {"version": "2"})
        for kind in ("cutover", "revert"):
            with pytest.raises(Busy, match="cutover of job sums to version 2 goes on already"):
                operations.start(tasks, kind, "sums", {"version": "3"})
        operations.start(tasks, "cutover", "counts", {"version": "2"})  # of another job
        commands.ready.set()
        await until(lambda: all(each.state == "done" for each in operations.all))
        operations.start(tasks, "revert", "sums", {})
        await until(lambda: all(each.state == "done" for each in operations.all))

    operations, _ = running(test)
    assert [(each.job, each.kind) for each in operations] == [("counts", "cutover"), ("sums", "revert")]


@pytest.mark.parametrize(
    ("error", "line"),
    [(UserError("sums@2 has failed", hint="mend it"), "sums@2 has failed (mend it)"), (KeyError("x"), "KeyError: 'x'")],
)
def test_what_fails_says_why_on_one_line(error, line):
    async def test(operations, commands, tasks, _):
        commands.error = error
        commands.ready.set()
        operations.start(tasks, "revert", "sums", {})
        await until(lambda: operations.all[0].state == "failed")

    (last,), _ = running(test)
    assert last.lines == [line]


def test_it_can_be_given_up():
    async def test(operations, _, tasks, told):
        begun = operations.start(tasks, "cutover", "sums", {"version": "2"})
        operations.give_up(begun.id + 1)  # of no such operation
        operations.give_up(begun.id)
        await until(lambda: told[-1][0][1] == "given up")
        operations.give_up(begun.id)  # too late

    (last,), _ = running(test)
    assert last.lines == ["it was given up; nothing is changed"]


def test_a_gateway_that_stops_gives_up_what_waits():
    async def test(operations, _, tasks, __):
        operations.start(tasks, "cutover", "sums", {"version": "2"})

    (last,), _ = running(test)
    assert last.state == "given up"
