import asyncio
import threading

import msgspec
import pytest

from mainstem.core import ManualClock, UserError
from mainstem.dash.operations import AT_ONCE, MOST_ENDED, Done, Operations
from mainstem.dash.web import Busy, NoResult, UnknownOperation
from mainstem.web.threads import Overloaded


class Work:
    """Waits until it is told to end, as a cutover does for its version."""

    def __init__(self):
        self.ready, self.error, self.result = threading.Event(), None, ""

    def run(self, kind, job, asked, going):
        going.tell(f"{kind} {job} waits")
        while not self.ready.is_set():
            going.pause(0.001)
        if self.error:
            raise self.error
        return Done([f"{asked.get('version', 'back')} is current"], "ms1.x", self.result)


class Told(list):
    """All that was told, as lists of (title, state, told)."""

    def __init__(self):
        super().__init__()
        self._news = asyncio.Event()

    def tell(self, all_):
        self.append([(each.title, each.state, each.told) for each in all_])
        self._news.set()

    async def until(self, reached):
        """Look again whenever something was told."""
        async with asyncio.timeout(30):
            while not reached():
                self._news.clear()
                await self._news.wait()


def running(test):
    """`test` with operations, their work, their tasks and what was told."""

    async def work():
        told, commands = Told(), Work()
        operations = Operations(commands, told.tell, ManualClock(77))
        async with asyncio.TaskGroup() as tasks:
            await test(operations, commands, tasks, told)
            operations.close()
        return operations.all, told

    return asyncio.run(work())


def test_it_tells_what_it_waits_for_and_what_became_of_it():
    async def test(operations, commands, tasks, told):
        begun = operations.start(tasks, "cutover", "sums", {"version": "2"})
        assert (begun.title, begun.state) == ("cutover of job sums to version 2", "running")
        await told.until(lambda: told[-1][0][2])
        commands.ready.set()
        await told.until(lambda: told[-1][0][1] == "done")

    (last,), told = running(test)
    assert [each[0][1:] for each in told] == [("running", ""), ("running", "cutover sums waits"), ("done", "")]
    assert (last.lines, last.basis, last.ended_ms) == (["2 is current"], "ms1.x", 77)


def test_pressing_twice_or_two_people_at_once_begin_it_once():
    async def test(operations, commands, tasks, told):
        operations.start(tasks, "cutover", "sums", {"version": "2"})
        for kind in ("cutover", "revert"):
            with pytest.raises(Busy, match="cutover of job sums to version 2 goes on already"):
                operations.start(tasks, kind, "sums", {"version": "3"})
        operations.start(tasks, "cutover", "counts", {"version": "2"})  # of another job
        commands.ready.set()
        await told.until(lambda: all(each.state == "done" for each in operations.all))
        operations.start(tasks, "revert", "sums", {})
        await told.until(lambda: all(each.state == "done" for each in operations.all))

    operations, _ = running(test)
    assert [(each.job, each.kind) for each in operations] == [("counts", "cutover"), ("sums", "revert")]


@pytest.mark.parametrize(
    ("error", "line"),
    [(UserError("sums@2 has failed", hint="mend it"), "sums@2 has failed (mend it)"), (KeyError("x"), "KeyError: 'x'")],
)
def test_what_fails_says_why_on_one_line(error, line):
    async def test(operations, commands, tasks, told):
        commands.error = error
        commands.ready.set()
        operations.start(tasks, "revert", "sums", {})
        await told.until(lambda: operations.all[0].state == "failed")

    (last,), _ = running(test)
    assert last.lines == [line]


def test_it_can_be_given_up():
    async def test(operations, _, tasks, told):
        begun = operations.start(tasks, "cutover", "sums", {"version": "2"})
        with pytest.raises(UnknownOperation, match=f"operation {begun.id + 1}: there is none"):
            operations.give_up(begun.id + 1)
        operations.give_up(begun.id)
        await told.until(lambda: told[-1][0][1] == "given up")
        operations.give_up(begun.id)  # too late

    (last,), _ = running(test)
    assert last.lines == ["it was given up; nothing is changed"]


def test_a_gateway_that_stops_gives_up_what_waits():
    async def test(operations, _, tasks, __):
        operations.start(tasks, "cutover", "sums", {"version": "2"})

    (last,), _ = running(test)
    assert last.state == "given up"


def test_of_those_that_have_ended_the_last_are_kept_and_results_apart():
    """Each diff of any name stayed for ever, and went to every page once a second."""

    async def test(operations, commands, tasks, told):
        commands.ready.set()
        commands.result = '{"equal": 7}'
        for number in range(MOST_ENDED + 5):
            begun = operations.start(tasks, "diff", f"job{number}", {"left": "1", "right": "2"})
            await told.until(lambda: told[-1][-1][1] == "done")
            if number == 0:
                first = begun.id
                assert operations.result(first) == '{"equal": 7}'
        assert operations.result(begun.id) == '{"equal": 7}'
        with pytest.raises(NoResult, match=f"^operation {first}: "):
            operations.result(first)

    kept, _ = running(test)
    assert [each.job for each in kept] == [f"job{number}" for number in range(5, MOST_ENDED + 5)]
    assert all(each.has_result for each in kept)
    assert b"equal" not in msgspec.json.encode(kept)


def test_only_so_many_go_on_at_once_and_no_more_are_begun():
    async def test(operations, commands, tasks, told):
        for number in range(AT_ONCE):
            operations.start(tasks, "revert", f"job{number}", {})
        with pytest.raises(Overloaded, match=f"{AT_ONCE} operations of other jobs go on"):
            operations.start(tasks, "revert", "more", {})
        assert len(operations.all) == AT_ONCE
        commands.ready.set()
        await told.until(lambda: all(each.state == "done" for each in operations.all))
        operations.start(tasks, "revert", "more", {})

    running(test)
