"""Start the processes of a project in order, keep them running, stop them in order.

    starting ──ready line──> running ──exit──> waiting (back-off) ──> starting
        │ exit 2 (misuse: a person has to mend something)
        ├──> it has never been ready: the supervisor stops everything and reports the child's own line
        ├──> it has been: failed ──a longer back-off──> starting; the others go on
        └──> exit 3 (a newer process has taken over): failed, and not started again; the others go on

A child says that it is ready by its first line on stdout. It ties itself to the supervisor (`core.process`), so a
killed supervisor leaves nothing behind.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from mainstem.core.backoff import FOR_A_PERSON, PASSING, Backoff
from mainstem.core.clock import SystemClock
from mainstem.core.errors import MainstemError, Retriable, UserError
from mainstem.core.logging import get_logger
from mainstem.core.process import PARENT, SUPERSEDED, end_signals
from mainstem.core.task import Attempts

log = get_logger()

Arguments = ParamSpec("Arguments")
T = TypeVar("T")

MISUSE = 2
LOG_BYTES = 16 * 1024 * 1024  # a larger log file is put aside when its child is started


class ChildSpec(msgspec.Struct, frozen=True):
    """A process to keep running.

    Attributes:
        name: of its log file, and what people call it.
        command: argument list; its first line on stdout means that it is ready.
        environment: laid over the supervisor's own.
        ready_within_s: a child that says nothing for so long is killed and tried again; None:
            it may take as long as it does.
        stop_within_s: after SIGTERM, before SIGKILL.
        vital: where it refuses to start, nothing else makes sense: all is stopped. Otherwise it is failed, and the
            others go on.
        early: it is started at once and prepares itself; the line on its stdin that `core.process.wait_for_go` waits
            for comes when the one before it is ready.
        behind: waits for this one instead of the one before it.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = {}
    ready_within_s: float | None = 120.0
    stop_within_s: float = 20.0
    early: bool = False
    vital: bool = True
    behind: str = ""


class ChildState(msgspec.Struct):
    """What `mainstem status` shows of a child. `since` is seconds since 1970.

    `state`: not started, starting, running, waiting (for the next try; with a `pid`, of what is to be done before the
    next child starts), failed (a person has to mend something; tried again from time to time, unless a newer process
    has taken over), stopping, stopped.
    """

    name: str
    state: str = "not started"
    pid: int | None = None
    restarts: int = 0
    since: float = 0.0
    ready_line: str = ""
    last_error: str = ""


class ChildFailed(UserError):
    """A child refused to start: what it says must be mended by a person."""


class _Stopping(Exception):
    """The supervisor is told to stop: whatever waits ends."""


class Supervisor:
    """Runs `specs` until `stop` is called or a signal comes.

    Args:
        specs: in order: each is started (or, where it is `early`, let go) when the one before it is ready, and stopped
            before it.
        logs: directory; `<name>.log` gets each child's stderr and what it prints after its ready line. One that has
            grown large becomes `<name>.log.1` when the child is started; one that runs keeps the file that it has.
        on_change: called with the states of all children whenever one changes.
        after: by the name of a child, what is to be done once when it is ready, before the next one starts; it runs
            in a thread, and the child is watched meanwhile. A Retriable or an OSError of it means another try, so it
            must bear to be repeated; for any other error everything is stopped, and `run` raises it.
        passing: how long to wait after an end that may pass by itself.
        for_a_person: how long to wait where a person has to mend something.

    Attributes:
        exit_codes: of the last life of each child that has ended; negative where a signal ended it.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        logs: Path,
        on_change: Callable[[list[ChildState]], None] = lambda _: None,
        *,
        after: Mapping[str, Callable[[], None]] | None = None,
        passing: Backoff = PASSING,
        for_a_person: Backoff = FOR_A_PERSON,
    ) -> None:
        self._specs = list(specs)
        self._logs = logs
        self._on_change = unfailing(on_change)
        self._after = dict(after or {})
        self._passing, self._for_a_person = passing, for_a_person
        self._states = {spec.name: ChildState(spec.name) for spec in specs}
        self._served = {spec.name: asyncio.Event() for spec in specs}  # it has said that it is ready
        self._ready = {spec.name: asyncio.Event() for spec in specs}  # and what is to be done after that is done
        self._stopped = {spec.name: asyncio.Event() for spec in specs}
        self._stopping = False
        self._waits: set[asyncio.Timeout] = set()  # those that `stop` ends
        self.exit_codes: dict[str, int] = {}
        self._life_began = {spec.name: 0 for spec in specs}  # the byte of its log file
        self._failure: MainstemError | None = None
        self._tasks: asyncio.TaskGroup | None = None

    def add(self, spec: ChildSpec) -> None:
        """Keep one more child running, behind those there are; call it from the event loop of `run`."""
        if self._stopping or self._tasks is None:
            return
        self._specs.append(spec)
        self._states[spec.name] = ChildState(spec.name)
        for events in (self._served, self._ready, self._stopped):
            events[spec.name] = asyncio.Event()
        self._life_began[spec.name] = 0
        self._tasks.create_task(self._keep_running(len(self._specs) - 1))

    def stop(self) -> None:
        """Begin to stop all children; call it from the event loop of `run`."""
        if self._stopping:
            return
        self._stopping = True
        for each in self._waits:
            each.reschedule(asyncio.get_running_loop().time())

    @property
    def states(self) -> list[ChildState]:
        return list(self._states.values())

    async def ready(self) -> bool:
        """Wait until every child has been ready once; False where the supervisor stops before."""

        async def everyone() -> None:
            for event in list(self._ready.values()):
                await event.wait()

        try:
            await self._unless_stopping(everyone())
        except _Stopping:
            return False
        return True

    async def run(self) -> None:
        """Start, watch, and stop all children.

        Raises:
            ChildFailed: a child refused to start; the others have been stopped.
            MainstemError: what was to be done after a child failed.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        ends = end_signals()
        for number in ends:
            loop.add_signal_handler(number, self.stop)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for index in range(len(self._specs)):
                    self._tasks.create_task(self._keep_running(index))
                for name in self._after:
                    self._tasks.create_task(self._follow_up(name))
        finally:
            for number in ends:
                loop.remove_signal_handler(number)
        if self._failure is not None:
            raise self._failure

    async def _keep_running(self, index: int) -> None:
        spec, state = self._specs[index], self._states[self._specs[index].name]
        before = spec.behind or (self._specs[index - 1].name if index else None)
        try:
            with contextlib.suppress(_Stopping):
                if before is not None and not spec.early:
                    await self._unless_stopping(self._ready[before].wait())
                await self._restart_until_stopped(spec, state, before)
        finally:
            self._change(state, "stopped", pid=None)
            self._stopped[spec.name].set()

    async def _restart_until_stopped(self, spec: ChildSpec, state: ChildState, before: str | None) -> None:
        attempts = Attempts(spec.name, SystemClock(), passing=self._passing, for_a_person=self._for_a_person)
        while not self._stopping:
            attempts.start()
            ended = await self._life(spec, state, before)
            if self._stopping:
                return
            code, state.last_error = ended
            refused = code in (MISUSE, SUPERSEDED)
            if refused and spec.vital and not self._served[spec.name].is_set():
                said = self._said(spec) or f"it ended with exit code {code}, and said nothing"
                self._failure = ChildFailed(f"{spec.name}: {said}", hint=f"its log: {self._log_file(spec)}")
                self.stop()
                return
            if code == SUPERSEDED:  # a new start would take the work back, and the two would do so for ever
                log.error("child_superseded", child=spec.name, said=state.last_error)
                self._change(state, "failed", pid=None)
                await self._unless_stopping(asyncio.Event().wait())
            delay_s = attempts.fail(state.last_error, needs_a_person=refused).retry_seconds
            log.info("child_ended", child=spec.name, exit_code=code, restart_in_s=delay_s, said=state.last_error)
            self._change(state, "failed" if refused else "waiting", pid=None)
            state.restarts += 1
            await self._unless_stopping(asyncio.sleep(delay_s))

    async def _life(self, spec: ChildSpec, state: ChildState, before: str | None) -> tuple[int, str]:
        """Run a child to its end; its exit code, and what to tell of it."""
        try:
            code = await self._run_once(spec, state, before)
        except OSError as error:  # no memory for a process, no room for its log file: that may pass
            return -1, f"cannot be started: {error}"
        said = self._said(spec)
        if code < 0:  # it had no time to say why: what it said last is what it was doing
            return code, f"exit {code} ({signal.strsignal(-code)})" + (f", after: {said}" if said else "")
        return code, f"exit {code}: {said}" if said else f"exit {code}"

    def _said(self, spec: ChildSpec) -> str:
        """The last line of this life of the child."""
        return last_line(self._log_file(spec), self._life_began[spec.name]).removeprefix("mainstem: ")

    async def _run_once(self, spec: ChildSpec, state: ChildState, before: str | None) -> int:
        """One life of a child: start, wait for its ready line, then for its end or ours. Return its exit code."""
        put_aside(self._log_file(spec))
        with self._log_file(spec).open("ab", buffering=0) as log_file:
            self._life_began[spec.name] = log_file.tell()
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.PIPE if spec.early else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                env={**os.environ, **spec.environment, PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C reaches only us: we stop the children in order
            )
            _end_with(process.pid)
            self._change(state, "starting", pid=process.pid)
            async with asyncio.TaskGroup() as life:
                first = life.create_task(_first_line(process))
                try:
                    with contextlib.suppress(_Stopping):
                        await self._let_go(before, process, first, life)
                        await self._watch(spec, state, process, first, unfailing(log_file.write))
                finally:
                    if process.returncode is None and self._stopping:
                        # All of them: the next one may be down, and stopped before those after it.
                        for each in self._specs[self._specs.index(spec) + 1 :]:
                            await self._stopped[each.name].wait()
                    if process.returncode is None:  # still: somebody may have signalled all of them at once
                        await self._end(spec, state, process)
                    first.cancel()
        code = self.exit_codes[spec.name] = process.returncode if process.returncode is not None else -1
        return code

    async def _let_go(
        self,
        before: str | None,
        process: asyncio.subprocess.Process,
        first: "asyncio.Task[bytes]",
        life: asyncio.TaskGroup,
    ) -> None:
        """Tell a child that was started early that it may begin, once the one before it is ready."""
        if process.stdin is None or before is None:
            return
        ready = life.create_task(self._ready[before].wait())
        try:
            either: list[asyncio.Task[Any]] = [first, ready]
            await self._unless_stopping(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
        finally:
            ready.cancel()
        process.stdin.write(b"go\n")  # to one that has ended, too: it will be noticed by what it said

    async def _watch(
        self,
        spec: ChildSpec,
        state: ChildState,
        process: asyncio.subprocess.Process,
        first: "asyncio.Task[bytes]",
        write: Callable[[bytes], object],
    ) -> None:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(spec.ready_within_s):
                line = await self._unless_stopping(first)
        except TimeoutError:
            write(f"no ready line within {spec.ready_within_s:.0f} s\n".encode())
            return
        if not line:
            await self._unless_stopping(process.wait())
            return
        state.ready_line = line.decode(errors="replace").strip()
        self._change(state, "running", pid=process.pid)
        self._served[spec.name].set()
        if spec.name not in self._after:
            self._ready[spec.name].set()

        async def forward(stdout: asyncio.StreamReader) -> None:
            while chunk := await stdout.read(65536):
                write(chunk)
            await process.wait()

        await self._unless_stopping(forward(process.stdout))

    async def _follow_up(self, name: str) -> None:
        """Do what is to be done once when the child `name` serves, in as many tries as it takes."""
        with contextlib.suppress(_Stopping):
            await self._unless_stopping(self._served[name].wait())
            await self._do_after(name, self._states[name])

    async def _do_after(self, name: str, state: ChildState) -> None:
        for failures in itertools.count(1):
            try:
                await self._unless_stopping(in_daemon_thread(self._after[name]))
                break
            except (Retriable, OSError) as error:
                delay_s = self._passing.pause(failures)
                log.info("follow_up_failed", child=name, error=str(error), retry_in_s=delay_s)
                if state.state in ("running", "waiting") and state.pid is not None:
                    state.last_error = f"what follows it failed: {error}"
                    self._change(state, "waiting", pid=state.pid)
            except MainstemError as error:
                self._failure = error
                self.stop()
                return
            await self._unless_stopping(asyncio.sleep(delay_s))
        if state.state == "waiting" and state.pid is not None:
            self._change(state, "running", pid=state.pid)
        self._ready[name].set()

    async def _end(self, spec: ChildSpec, state: ChildState, process: asyncio.subprocess.Process) -> None:
        self._change(state, "stopping", pid=process.pid)
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself, and asyncio knows already
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), spec.stop_within_s)
        except TimeoutError:
            log.warning("child_killed", child=spec.name, after_s=spec.stop_within_s)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _unless_stopping(self, work: Awaitable[T]) -> T:
        """What `work` gives, or raises.

        Raises:
            _Stopping: the supervisor is told to stop first; `work` is cancelled.
        """
        wait = asyncio.timeout_at(asyncio.get_running_loop().time() if self._stopping else None)
        try:
            async with wait:
                self._waits.add(wait)
                return await work
        except TimeoutError:
            if wait.expired():
                raise _Stopping from None
            raise
        finally:
            self._waits.discard(wait)

    def _change(self, state: ChildState, to: str, *, pid: int | None) -> None:
        state.state, state.pid, state.since = to, pid, time.time()
        self._on_change(self.states)

    def _log_file(self, spec: ChildSpec) -> Path:
        return self._logs / f"{spec.name}.log"


def unfailing(report: Callable[Arguments, object]) -> Callable[Arguments, None]:
    """`report`, except that it never raises: a closed pipe or a full disk must not end what is reported on.

    The first failure is logged, and the first after it has worked again.
    """
    failing = False

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        nonlocal failing
        try:
            report(*args, **kwargs)
        except Exception as error:
            if not failing:
                log.warning("report_failed", error=f"{type(error).__name__}: {error}")
            failing = True
        else:
            failing = False

    return call


def in_daemon_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """What `work` gives, or raises, in a thread for which nobody waits at the end of the program, as is done for those
    of `to_thread`.

    Nothing can stop a thread, and a client of a server that is down goes on trying for half a minute.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def unless_cancelled(report: Callable[[], None]) -> None:
        if not done.cancelled():
            report()

    def run() -> None:
        try:
            report = partial(done.set_result, work())
        except BaseException as error:
            report = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(unless_cancelled, report)

    threading.Thread(target=run, name="follow-up", daemon=True).start()
    return done


def _end_with(leader: int) -> None:
    """When the process `leader` ends, however it ends, kill what is left of its group.

    A JVM outlives the killed Python that started it for a while: it would work on checkpoints that the next one has
    open already, and hold the pipe by whose end asyncio knows that a process is gone.
    """
    loop = asyncio.get_running_loop()
    try:
        ended = os.pidfd_open(leader)
    except ProcessLookupError:  # it has ended already, and asyncio knows
        _kill_group(leader)
        return

    def on_end() -> None:
        loop.remove_reader(ended)
        os.close(ended)
        _kill_group(leader)

    loop.add_reader(ended, on_end)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


async def _first_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


def put_aside(path: Path) -> None:
    """Make room for a new log file where the old one is large; one old one is kept beside it."""
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))


def last_line(path: Path, since: int = 0) -> str:
    """The last non-empty line of a log file from byte `since` on; "" where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(since, file.tell() - 8192))
            lines = deque((line for line in file.read().splitlines() if line.strip()), maxlen=1)
    except FileNotFoundError:
        return ""
    return lines[0].decode(errors="replace").strip() if lines else ""


def python(*arguments: str) -> tuple[str, ...]:
    """The command line of a child that is this same program.

    With -P it never imports from the working directory, where a `token.py` would be taken for Python's own.
    """
    return (sys.executable, "-P", "-m", "mainstem", *arguments)
