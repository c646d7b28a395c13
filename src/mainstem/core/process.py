"""What a child process owes its parent: to wait for what it needs, to say when it is ready, to stop when told,
to die with it.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from mainstem.core.errors import MainstemError
from mainstem.core.threads import LastingThreads

PARENT = "MAINSTEM_PARENT_PID"
SUPERSEDED = 3
"""Exit code of a child whose work a newer process has taken over: its supervisor must not start it again."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ParentGone(MainstemError):
    """The process that started this one ended before this one could tie itself to it."""


def die_with_parent(environment: os._Environ[str] = os.environ) -> None:
    """Where a supervisor started this process, ask the kernel to kill it when the supervisor ends, however it ends.

    SIGKILL, not SIGTERM: everything here is safe to kill, and what outlives its supervisor would hold locks and
    ports against the next `mainstem up`.

    Raises:
        ParentGone: the supervisor ended before the kernel was asked.
    """
    parent = environment.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != int(parent):
        raise ParentGone(f"started by process {parent}, which has ended")


def open_standard_files() -> None:
    """Where stdin, stdout or stderr is closed, let it be `/dev/null`, for children too.

    Else the next file or socket that is opened has its number: libuv aborts the process when it closes that, and what
    somebody prints would be written into it. Where a file of the program's own has it already, that is left alone.
    """
    opened = set()
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened.add(found := os.open(os.devnull, os.O_RDWR))  # the lowest number that is free
            os.set_inheritable(found, True)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            file = number if number in opened else os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(file, mode, closefd=False))


def start_child(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """`subprocess.Popen` from a thread that lives as long as this process, so that any thread may start a child.

    A child that asks to be told of its parent's end is told when the *thread* that started it ends.
    """
    return _starter().submit(lambda: subprocess.Popen(command, **options)).result()


@cache
def _starter() -> LastingThreads:
    return LastingThreads(1, "starter")


os.register_at_fork(after_in_child=_starter.cache_clear)  # a fork has no threads


def is_there(pid: int) -> bool:
    """Whether the process is there, or waits to be collected; it need be no child of this one.

    Raises:
        PermissionError: it is another user's.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def end_signals() -> list[signal.Signals]:
    """Those that ask a process which serves to end: a person's, a supervisor's, and that of a terminal which is closed,
    unless that is to be ignored (`nohup`).
    """
    ends = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    return ends


def wait_for_go(environment: os._Environ[str] = os.environ) -> bool:
    """Wait until the processes that this one needs are ready: its supervisor says so by a line on stdin.

    A process that takes long to start is started early, and does here what needs nobody else before it waits. Without
    a supervisor nobody is waited for. False: the supervisor stops, nothing is to be begun any more.
    """
    return PARENT not in environment or bool(sys.stdin.readline())


def say_ready(line: str) -> None:
    """Tell whoever started this process (a person or a supervisor) that it serves: one line on stdout."""
    print(line, flush=True)
