import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import structlog

from mainstem.core import Backoff, Retriable, UserError
from mainstem.standalone import supervisor as supervisor_module
from mainstem.standalone.supervisor import ChildFailed, ChildSpec, Supervisor, last_line
from tests.support.processes import alive

pytestmark = pytest.mark.anyio

SERVE = "import sys,time; from mainstem.core.process import die_with_parent; die_with_parent(); print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def anyio_backend():
    return "asyncio"


def child(name, code, **options):
    return ChildSpec(name, (sys.executable, "-c", code), **options)


async def run(supervisor, then):
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        async with asyncio.timeout(30):
            await then()
        supervisor.stop()
    return running


async def test_children_start_in_order_and_stop_in_reverse(tmp_path):
    changes = []
    supervisor = Supervisor(
        [child("a", SERVE), child("b", SERVE)],
        tmp_path,
        lambda states: changes.append([(s.name, s.state) for s in states]),
    )
    await run(supervisor, supervisor.ready)
    order = [pair for snapshot in changes for pair in snapshot]
    assert order.index(("a", "running")) < order.index(("b", "starting"))
    assert [next(s for n, s in snapshot if n == "a") for snapshot in changes].count("starting") == 1
    assert order.index(("b", "stopped")) < order.index(("a", "stopping"))


async def test_the_first_stops_last_where_one_in_between_waits_for_its_next_try(tmp_path):
    """A connect worker in back-off was stopped at once, and the log before Spark, which was still writing to it."""
    changes = []
    slow = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(0))); " + SERVE
    )
    supervisor = Supervisor(
        [child("log", SERVE), child("connect", SERVE), child("spark", slow)],
        tmp_path,
        lambda states: changes.append({s.name: s.state for s in states}),
        passing=Backoff(30, 30),
    )

    async def break_the_second():
        await supervisor.ready()
        os.kill(supervisor.states[1].pid, signal.SIGKILL)
        while supervisor.states[1].state != "waiting":
            await asyncio.sleep(0.01)

    await run(supervisor, break_the_second)
    assert [each["spark"] for each in changes if each["log"] == "stopping"] == ["stopped"]


async def test_children_that_end_while_those_after_them_are_stopped_disturb_no_stop(tmp_path):
    """A machine that shuts down, or `systemctl stop`, signals all at once: a long traceback, and Spark was killed."""
    may_end = tmp_path / "may_end"
    slow = (
        "import pathlib, signal, sys, time\ndef end(*_):\n"
        f"    while not pathlib.Path({str(may_end)!r}).exists(): time.sleep(0.01)\n"
        "    sys.exit(0)\nsignal.signal(signal.SIGTERM, end)\n" + SERVE
    )
    supervisor = Supervisor([child("log", SERVE), child("connect", SERVE), child("spark", slow)], tmp_path)

    async def end_all():
        await supervisor.ready()
        pids = [state.pid for state in supervisor.states]
        supervisor.stop()
        while supervisor.states[2].state != "stopping":
            await asyncio.sleep(0.01)
        for pid in pids[:2]:
            os.kill(pid, signal.SIGTERM)
        while any(alive(pid) for pid in pids[:2]):
            await asyncio.sleep(0.01)
        may_end.touch()

    await run(supervisor, end_all)
    assert [state.state for state in supervisor.states] == ["stopped"] * 3
    assert supervisor.exit_codes == {"log": -signal.SIGTERM, "connect": -signal.SIGTERM, "spark": 0}


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_all_in_order(tmp_path, number):
    supervisor = Supervisor([child("a", SERVE), child("b", SERVE)], tmp_path)

    async def end():
        await supervisor.ready()
        os.kill(os.getpid(), number)

    await run(supervisor, end)
    assert [state.state for state in supervisor.states] == ["stopped"] * 2


async def test_a_killed_child_is_started_again(tmp_path):
    supervisor = Supervisor([child("a", SERVE)], tmp_path, passing=Backoff(0.01, 30))
    pids = []

    async def kill_twice():
        for _ in range(2):
            while supervisor.states[0].state != "running" or supervisor.states[0].pid in pids:
                await asyncio.sleep(0.01)
            pids.append(supervisor.states[0].pid)
            os.kill(pids[-1], signal.SIGKILL)
        while supervisor.states[0].state != "running" or supervisor.states[0].pid in pids:
            await asyncio.sleep(0.01)

    await run(supervisor, kill_twice)
    assert supervisor.states[0].restarts == 2
    assert supervisor.states[0].last_error == "exit -9 (Killed)"


async def test_what_a_killed_child_said_in_an_earlier_life_is_not_why_it_ended(tmp_path):
    (tmp_path / "a.log").write_text("mainstem: port 9092: in use\n")
    talk = "import sys; print('segment rolled', file=sys.stderr); "
    supervisor = Supervisor([child("a", SERVE), child("b", talk + SERVE)], tmp_path, passing=Backoff(0.01, 30))

    async def kill():
        await supervisor.ready()
        for state in supervisor.states:
            os.kill(state.pid, signal.SIGKILL)
        while [state.restarts for state in supervisor.states] != [1, 1]:
            await asyncio.sleep(0.01)

    await run(supervisor, kill)
    assert [s.last_error for s in supervisor.states] == [
        "exit -9 (Killed)",
        "exit -9 (Killed), after: segment rolled",
    ]


EARLY = """
import pathlib, sys, time
from mainstem.core.process import wait_for_go
pathlib.Path({prepared!r}).touch()
if wait_for_go():
    print('ready', flush=True)
    time.sleep(600)
pathlib.Path({prepared!r}).unlink()
"""


def reads_stdin(pid):
    """Whether the process sits in `read` of file descriptor 0: https://docs.kernel.org/filesystems/proc.html"""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 ")


async def test_an_early_child_prepares_itself_and_goes_on_when_it_is_told(tmp_path):
    prepared, may = tmp_path / "prepared", tmp_path / "may"
    slow = f"import pathlib, time\nwhile not pathlib.Path({str(may)!r}).exists(): time.sleep(0.01)\n" + SERVE
    early = child("early", EARLY.format(prepared=str(prepared)), early=True, ready_within_s=20)
    supervisor = Supervisor([child("slow", slow), early], tmp_path, passing=Backoff(0.01, 30))

    async def let_the_first_be_ready():
        while not prepared.exists():
            await asyncio.sleep(0.01)
        while not reads_stdin(supervisor.states[1].pid):
            await asyncio.sleep(0.01)
        assert [state.state for state in supervisor.states] == ["starting", "starting"]
        may.touch()
        await supervisor.ready()
        os.kill(supervisor.states[1].pid, signal.SIGKILL)  # it is told again
        while supervisor.states[1].restarts < 1 or supervisor.states[1].state != "running":
            await asyncio.sleep(0.01)

    await run(supervisor, let_the_first_be_ready)


async def test_an_early_child_that_is_not_needed_any_more_ends_by_itself(tmp_path):
    prepared = tmp_path / "prepared"
    never = "import time; time.sleep(600)"
    early = child(
        "early",
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + EARLY.format(prepared=str(prepared)),
        early=True,
    )
    supervisor = Supervisor([child("never", never), early], tmp_path)

    async def both_started():
        while not prepared.exists():
            await asyncio.sleep(0.01)

    started = time.monotonic()
    await run(supervisor, both_started)
    assert not prepared.exists()
    assert time.monotonic() - started < early.stop_within_s / 2


async def test_an_early_child_that_refuses_stops_everything_before_it_is_told(tmp_path):
    refuse = "import sys; print('mainstem: Java: found none', file=sys.stderr); sys.exit(2)"
    supervisor = Supervisor([child("never", "import time; time.sleep(600)"), child("a", refuse, early=True)], tmp_path)
    with pytest.raises(ChildFailed, match=r"^a: Java: found none"):
        await supervisor.run()


async def test_misuse_stops_everything_and_repeats_the_childs_line(tmp_path):
    refuse = "import sys; print('mainstem: port 9092: in use', file=sys.stderr); sys.exit(2)"
    supervisor = Supervisor([child("a", SERVE), child("log", refuse)], tmp_path)
    with pytest.raises(ChildFailed, match=r"^log: port 9092: in use"):
        await supervisor.run()
    assert [state.state for state in supervisor.states] == ["stopped", "stopped"]


async def test_misuse_of_a_child_that_has_been_ready_leaves_the_others_alone(tmp_path):
    """A typing error saved in the settings, then a crash: the log must not stop for it."""
    mended = tmp_path / "mended"
    mended.touch()
    fragile = f"import pathlib, sys\nif not pathlib.Path({str(mended)!r}).exists(): sys.exit('wrong setting') or sys.exit(2)\n"
    fragile = fragile.replace("sys.exit('wrong setting') or", "print('wrong setting', file=sys.stderr) or") + SERVE
    states = []
    supervisor = Supervisor(
        [child("log", SERVE), child("a", fragile)],
        tmp_path,
        lambda all_states: states.append(all_states[1].state),
        passing=Backoff(0.01, 0.05),
        for_a_person=Backoff(0.05, 0.05),
    )

    async def until(state):
        while supervisor.states[1].state != state:
            await asyncio.sleep(0.005)

    async def break_and_mend():
        await supervisor.ready()
        log_pid = supervisor.states[0].pid
        mended.unlink()
        os.kill(supervisor.states[1].pid, signal.SIGKILL)
        await until("failed")
        assert supervisor.states[1].last_error == "exit 2: wrong setting"
        assert (supervisor.states[0].state, supervisor.states[0].pid) == ("running", log_pid)
        mended.touch()
        await until("running")

    await run(supervisor, break_and_mend)
    assert "failed" in states


async def test_a_child_whose_work_a_newer_process_has_taken_over_is_not_started_again(tmp_path):
    """Two projects of one Kafka, each with a gateway of the same name, took the collector from each other for ever."""
    ends = tmp_path / "ends"
    taken_over = (
        "import pathlib, sys, time\nprint('ready', flush=True)\n"
        f"while not pathlib.Path({str(ends)!r}).exists(): time.sleep(0.01)\n"
        "print('mainstem: a newer one took over (do this)', file=sys.stderr); sys.exit(3)"
    )
    soon = Backoff(0.01, 0.01)
    specs = [child("a", taken_over), child("b", SERVE)]
    supervisor = Supervisor(specs, tmp_path, passing=soon, for_a_person=soon)

    async def take_over():
        await supervisor.ready()
        ends.touch()
        while supervisor.states[0].state != "failed":
            await asyncio.sleep(0.005)
        ends.unlink()
        pid = supervisor.states[1].pid
        os.kill(pid, signal.SIGKILL)
        while supervisor.states[1].pid in (pid, None):  # by now, one that is tried again would be too
            await asyncio.sleep(0.005)
        first = supervisor.states[0]
        assert (first.state, first.restarts) == ("failed", 0)
        assert first.last_error == "exit 3: a newer one took over (do this)"

    await run(supervisor, take_over)
    assert [state.state for state in supervisor.states] == ["stopped", "stopped"]


async def test_a_report_that_fails_ends_nothing(tmp_path):
    reports = []

    def full_disk(states):
        reports.append(states)
        raise OSError(28, "No space left on device")

    supervisor = Supervisor([child("a", SERVE)], tmp_path, full_disk)
    with structlog.testing.capture_logs() as logs:
        await run(supervisor, supervisor.ready)
    assert len(reports) > 2
    assert [line["event"] for line in logs] == ["report_failed"]  # told once


async def test_a_child_that_cannot_be_started_is_tried_again(tmp_path):
    missing = tmp_path / "program"
    supervisor = Supervisor([ChildSpec("a", (str(missing),))], tmp_path, passing=Backoff(0.01, 0.02))

    async def second_try():
        while supervisor.states[0].restarts < 1:
            await asyncio.sleep(0.01)
        assert "cannot be started" in supervisor.states[0].last_error
        missing.write_text(f"#!{sys.executable}\n{SERVE}")
        missing.chmod(0o755)
        await supervisor.ready()

    await run(supervisor, second_try)


async def test_what_follows_a_child_comes_before_the_next(tmp_path):
    seen = []
    supervisor = Supervisor(
        [child("a", SERVE), child("b", SERVE)],
        tmp_path,
        after={"a": lambda: seen.append([state.state for state in supervisor.states])},
    )
    await run(supervisor, supervisor.ready)
    assert seen == [["running", "not started"]]


async def test_a_failure_of_what_follows_stops_everything(tmp_path):
    def refuse():
        raise UserError("topic t: expected 2 partitions, found 1")

    supervisor = Supervisor([child("a", SERVE), child("b", SERVE)], tmp_path, after={"a": refuse})
    with pytest.raises(UserError, match="expected 2 partitions"):
        await supervisor.run()
    assert [state.state for state in supervisor.states] == ["stopped", "stopped"]


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), Retriable("log: no answer")])
async def test_what_follows_a_child_is_tried_again_where_that_may_help(tmp_path, failure):
    """An OSError counted as one of starting the child: it was started again, and ready with no topics declared."""
    tries, states = [], []

    def third_time_lucky():
        tries.append(supervisor.states[0].pid)
        if len(tries) < 3:
            raise failure

    supervisor = Supervisor(
        [child("a", SERVE), child("b", SERVE)],
        tmp_path,
        lambda all_states: states.append((all_states[0].state, all_states[0].pid, all_states[1].state)),
        after={"a": third_time_lucky},
        passing=Backoff(0.01, 30),
    )
    await run(supervisor, supervisor.ready)
    (pid,) = set(tries)
    assert len(tries) == 3
    assert supervisor.states[0].restarts == 0
    assert ("waiting", pid, "not started") in states
    assert ("running", pid, "running") in states
    assert supervisor.states[0].last_error == f"what follows it failed: {failure}"


async def test_a_child_that_ends_during_what_follows_it_is_started_again(tmp_path):
    """Nobody watched the gateway meanwhile: killed, it stayed "running", and then all of `up` ended."""
    again = threading.Event()
    supervisor = Supervisor(
        [child("a", SERVE), child("b", SERVE)], tmp_path, after={"a": lambda: again.wait(30)}, passing=Backoff(0.01, 30)
    )

    async def kill():
        while supervisor.states[0].state != "running":
            await asyncio.sleep(0.01)
        os.kill(supervisor.states[0].pid, signal.SIGKILL)
        while (supervisor.states[0].restarts, supervisor.states[0].state) != (1, "running"):
            await asyncio.sleep(0.01)
        assert supervisor.states[1].state == "not started"
        again.set()
        await supervisor.ready()

    await run(supervisor, kill)


def test_nobody_waits_for_what_follows_when_all_stops(tmp_path):
    """A Ctrl-C was heard, and then the program waited until a client had lost its patience."""
    begun, end = threading.Event(), threading.Event()

    def wait_long():
        begun.set()
        end.wait(20)

    async def stop_soon():
        supervisor = Supervisor([child("a", SERVE)], tmp_path, after={"a": wait_long})

        async def until_begun():
            while not begun.is_set():
                await asyncio.sleep(0.01)

        await run(supervisor, until_begun)

    started = time.monotonic()
    asyncio.run(stop_soon())
    end.set()
    assert time.monotonic() - started < 15


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVE
    supervisor = Supervisor([child("a", deaf, stop_within_s=0.2)], tmp_path)
    pid = None

    async def note():
        nonlocal pid
        await supervisor.ready()
        pid = supervisor.states[0].pid

    await run(supervisor, note)
    assert not alive(pid)


async def test_what_a_killed_child_had_started_ends_with_it(tmp_path):
    """A JVM went on after its driver was killed, and the driver was not seen to have ended before that."""
    code = f"import subprocess, sys; other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(other.pid, flush=True); {SERVE}"
    supervisor = Supervisor([child("a", code)], tmp_path, passing=Backoff(0.01, 30))

    async def kill():
        await supervisor.ready()
        state = supervisor.states[0]
        first, started = state.pid, int(state.ready_line)
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(20):
            while state.pid in (first, None) or alive(started):
                await asyncio.sleep(0.01)

    await run(supervisor, kill)


async def test_a_child_that_has_ended_before_it_is_watched_is_told_as_it_ended(tmp_path, monkeypatch):
    """A disk that is slow to sync what is said of the others held up the loop meanwhile: its end was not that of a
    child that refused, and it was tried again.
    """
    start = asyncio.create_subprocess_exec

    async def start_slowly(*command, **options):
        process = await start(*command, **options)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    refuses = "import sys; sys.stderr.write('port 9 is in use\\n'); sys.exit(2)"
    with pytest.raises(ChildFailed, match="a: port 9 is in use"):
        async with asyncio.timeout(30):
            await Supervisor([child("a", refuses)], tmp_path).run()


async def test_a_log_file_that_has_grown_large_is_put_aside_when_its_child_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "LOG_BYTES", 1000)
    talk = "import sys; print('x' * 600, file=sys.stderr); "
    supervisor = Supervisor([child("a", talk + "sys.exit(1)")], tmp_path, passing=Backoff(0.01, 0.01))

    async def several_lives():
        while supervisor.states[0].restarts < 6:
            await asyncio.sleep(0.01)

    await run(supervisor, several_lives)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1"]
    assert all(path.stat().st_size <= 2 * 601 for path in tmp_path.iterdir())
    assert "xxx" in supervisor.states[0].last_error


async def test_a_silent_child_is_ended_and_tried_again(tmp_path):
    supervisor = Supervisor(
        [child("a", "import time; time.sleep(600)", ready_within_s=0.2)], tmp_path, passing=Backoff(0.01, 30)
    )

    async def second_try():
        while supervisor.states[0].restarts < 1:
            await asyncio.sleep(0.01)

    await run(supervisor, second_try)
    assert "no ready line" in last_line(tmp_path / "a.log")


def test_children_die_with_a_killed_supervisor(tmp_path):
    program = (
        "import asyncio, pathlib, sys\n"
        "from mainstem.standalone.supervisor import ChildSpec, Supervisor\n"
        f"serve = {SERVE!r}\n"
        "s = Supervisor([ChildSpec('a', (sys.executable, '-c', serve))], pathlib.Path(sys.argv[1]),\n"
        "    lambda states: states[0].state == 'running' and print(states[0].pid, flush=True))\n"
        "asyncio.run(s.run())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE) as supervisor:
        pid = int(supervisor.stdout.readline())
        assert alive(pid)
        supervisor.kill()
        supervisor.wait()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


async def test_what_is_waited_for_gives_its_result_or_its_error_unless_all_stops(tmp_path):
    """Work that raised looked like work that was done; a few callers looked at its result."""

    async def work(error=None):
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return "done"

    supervisor = Supervisor([], tmp_path)
    assert await supervisor._unless_stopping(work()) == "done"
    for error in (ValueError("torn"), TimeoutError("its own")):
        with pytest.raises(type(error), match=str(error)):
            await supervisor._unless_stopping(work(error))
    asyncio.get_running_loop().call_later(0.01, supervisor.stop)
    for _ in range(2):  # while it waits, and when it is told already
        with pytest.raises(supervisor_module._Stopping):
            await supervisor._unless_stopping(asyncio.sleep(600))
        supervisor.stop()
    assert not supervisor._waits


async def test_a_child_that_is_added_runs_behind_the_others_and_stops_before_them(tmp_path):
    changes = []
    supervisor = Supervisor(
        [child("a", SERVE)], tmp_path, lambda states: changes.extend((each.name, each.state) for each in states)
    )

    async def add():
        await supervisor.ready()
        supervisor.add(child("b", SERVE))
        await supervisor.ready()
        assert [(each.name, each.state) for each in supervisor.states] == [("a", "running"), ("b", "running")]

    await run(supervisor, add)
    assert changes.index(("b", "stopped")) < changes.index(("a", "stopping"))
    supervisor.add(child("c", SERVE))  # too late
    assert [each.name for each in supervisor.states] == ["a", "b"]


async def test_a_child_waits_for_the_one_that_it_is_behind_and_not_for_the_one_before_it(tmp_path):
    """Of two applications the second waited for the cluster of the first."""
    never = child("b", "import time; time.sleep(600)", behind="a")
    supervisor = Supervisor([child("a", SERVE), never, child("c", SERVE, behind="a")], tmp_path)

    async def third():
        while supervisor.states[2].state != "running":
            await asyncio.sleep(0.01)
        assert [each.state for each in supervisor.states] == ["running", "starting", "running"]

    await run(supervisor, third)


async def test_one_that_is_not_vital_and_refuses_to_start_stops_nothing(tmp_path):
    refuse = child("b", "import sys; print('mainstem: no such job', file=sys.stderr); sys.exit(2)", vital=False)
    supervisor = Supervisor([child("a", SERVE)], tmp_path, for_a_person=Backoff(0.01, 30))

    async def add():
        await supervisor.ready()
        supervisor.add(refuse)
        while supervisor.states[1].restarts < 2:
            await asyncio.sleep(0.01)
        assert supervisor.states[0].state == "running"
        assert supervisor.states[1].last_error == "exit 2: no such job"

    await run(supervisor, add)
