"""What a person has the platform do to a job: one at a time of a kind, in a thread, told to all who look.

    press ──> running ──tells what it waits for──> done
                 │                             └─> failed: why, on one line
                 └──another press: refused, since it goes on; "give up" ends it while it waits

What ends before its last step has changed nothing; so has what a gateway that stops leaves behind. Operations are in
memory only: what they change is in the log. Of those that have ended the last few are kept. Their states go to every
page with each event; what an operation has found is asked for by its number, once.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from mainstem.core import MainstemError, Retriable
from mainstem.core.clock import Clock
from mainstem.core.logging import get_logger
from mainstem.dash.state import Operation
from mainstem.dash.web import Busy, NoResult, UnknownOperation, own_threads
from mainstem.web.threads import Overloaded, call_soon

log = get_logger()

AT_ONCE = 8
MOST_ENDED = 20


class GivenUp(Retriable):
    """Somebody has ended it, or the gateway stops."""


class Done(msgspec.Struct, frozen=True):
    """What an operation has led to: lines for people, and the token of what it wrote; `result` is JSON for its page."""

    lines: list[str]
    basis: str = ""
    result: str = ""


class Going:
    """How an operation speaks with whoever looks. For its thread."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._ended = threading.Event()

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            GivenUp: nobody wants it any more.
        """
        if self._ended.wait(seconds):
            raise GivenUp("it was given up; nothing is changed")

    def give_up(self) -> None:
        self._ended.set()


class Commands(Protocol):
    """What can be done to a job; who builds the node knows how. All of it blocks."""

    def knows(self, job: str) -> bool:
        """Whether there is such a job."""
        ...

    def check(self, kind: str, job: str, asked: Mapping[str, str]) -> None:
        """See that what is asked for still means what its page has said.

        Raises:
            Changed: it does not.
        """
        ...

    def versions(self, job: str) -> Any:
        """Its versions, and which are ready."""
        ...

    def run(self, kind: str, job: str, asked: Mapping[str, str], going: Going) -> Done:
        """Do what was asked: one of `KINDS`."""
        ...


KINDS: dict[str, str] = {"cutover": "readers", "revert": "readers", "reprocess": "versions", "diff": "diff"}
"""What can be asked -> what two of them may not do at once to one job."""


TITLES = {
    "cutover": "cutover of job {job} to version {version}",
    "revert": "revert of job {job}",
    "reprocess": "reprocess of job {job}",
    "diff": "diff of job {job}: version {left} to {right}",
}
NEEDED = {"cutover": ("version",), "revert": ("version",), "diff": ("left", "right")}
OPTIONAL = {"reprocess": ("anyway",)}
"""What has to, and what may, be said with it."""


class Operations:
    """For one event loop.

    Args:
        commands: do the work.
        tell: called with all operations when one has changed, in the loop.
        clock: what they are dated with.
    """

    def __init__(self, commands: Commands, tell: Callable[[list[Operation]], None], clock: Clock) -> None:
        self._commands, self._tell, self._clock = commands, tell, clock
        self._threads = own_threads(AT_ONCE, most_waiting=0)
        self._last: dict[tuple[str, str], Operation] = {}
        self._going: dict[tuple[str, str], Going] = {}
        self._results: dict[int, str] = {}
        self._count = 0

    def start(self, tasks: asyncio.TaskGroup, kind: str, job: str, asked: Mapping[str, str]) -> Operation:
        """Begin. The job is one that there is.

        Raises:
            Busy: one of its kind goes on.
            Overloaded: too many of other jobs do.
        """
        place = job, KINDS[kind]
        if place in self._going:
            raise Busy(
                f"{self._last[place].title} goes on already: it was asked for before",
                hint="this page shows how far it is; it can be given up there",
            )
        if len(self._going) >= AT_ONCE:
            raise Overloaded(f"{len(self._going)} operations of other jobs go on", hint="wait for one, or give it up")
        self._count += 1
        began = self._clock.now_ms()
        title = TITLES[kind].format(job=job, **asked)
        loop = asyncio.get_running_loop()
        self._going[place] = Going(lambda line: call_soon(loop, self._see, place, line))
        self._last[place] = Operation(self._count, kind, job, title, "running", began)
        tasks.create_task(self._run(place, kind, job, asked))
        self._tell(self.all)
        return self._last[place]

    def give_up(self, number: int) -> None:
        """End an operation where it waits; whoever presses too late has no effect.

        Raises:
            UnknownOperation: there is none of this number.
        """
        place = next((place for place, each in self._last.items() if each.id == number), None)
        if place is None:
            raise UnknownOperation(f"operation {number}: there is none, or it ended long ago")
        if place in self._going:
            self._going[place].give_up()

    def result(self, number: int) -> str:
        """What the operation has found, as JSON.

        Raises:
            NoResult: nothing, or so many have ended since that it is not kept.
        """
        try:
            return self._results[number]
        except KeyError:
            raise NoResult(f"operation {number}: it has no result that is kept", hint="ask for it again") from None

    @property
    def all(self) -> list[Operation]:
        """The last one of each kind of each job: those that go on, and the last `MOST_ENDED` of the others."""
        return sorted(self._last.values(), key=lambda each: each.id)

    def close(self) -> None:
        """Give up all that go on."""
        for going in self._going.values():
            going.give_up()
        self._threads.close()

    def _see(self, place: tuple[str, str], line: str) -> None:
        if place in self._going:
            self._change(place, told=line)

    async def _run(self, place: tuple[str, str], kind: str, job: str, asked: Mapping[str, str]) -> None:
        going = self._going[place]
        try:
            going.pause(0)  # the gateway may stop already
            done = await self._threads.call(self._commands.run, kind, job, asked, going)
            if done.result:
                self._results[self._last[place].id] = done.result
            end = {"state": "done", "lines": done.lines, "basis": done.basis, "has_result": bool(done.result)}
        except GivenUp as error:
            end = {"state": "given up", "lines": [str(error)]}
        except MainstemError as error:
            end = {"state": "failed", "lines": [f"{error} ({error.hint})" if error.hint else str(error)]}
        except Exception as error:  # told on the page
            log.exception("dashboard_operation_failed", kind=kind, job=job)
            end = {"state": "failed", "lines": [f"{type(error).__name__}: {error}"]}
        del self._going[place]
        self._last[place] = self._last.pop(place)  # in the order in which they have ended
        self._forget()
        self._change(place, told="", ended_ms=self._clock.now_ms(), **end)

    def _forget(self) -> None:
        ended = [place for place in self._last if place not in self._going]
        for place in ended[:-MOST_ENDED]:
            del self._last[place]
        kept = {each.id for each in self._last.values()}
        self._results = {number: result for number, result in self._results.items() if number in kept}

    def _change(self, place: tuple[str, str], **changes: Any) -> None:
        self._last[place] = msgspec.structs.replace(self._last[place], **changes)
        self._tell(self.all)
