"""A command of ours as a process: what imports a user's code, or computes for long, has no place in a server."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from mainstem.core import Retriable, UserError

LOOK_EVERY_SECONDS = 0.2
END_SECONDS = 5.0
_NAME = "mainstem: "


class CommandFailed(UserError):
    """It ended with an error, which this one repeats."""


class CommandKilled(Retriable):
    """It was ended from outside."""


def run_command(
    words: Sequence[str], *, tell: Callable[[str], None], pause: Callable[[float], object], directory: Path
) -> str:
    """What `mainstem WORDS` has written to its stdout.

    Args:
        words: of the command.
        tell: is called with each line that it writes to stderr.
        pause: waits so many seconds; the command is ended with an error of this, which is raised unless it was done.
        directory: where the command is called.

    Raises:
        CommandFailed: it did; the message is its last line.
        CommandKilled: somebody has ended it.
    """
    command = [sys.executable, "-P", "-m", "mainstem", *words]
    with tempfile.TemporaryFile("w+") as output, tempfile.NamedTemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=directory)
        try:
            lines = _follow(process, errors.name, tell, pause)
        except Exception:
            _end(process)
            if process.returncode != 0:
                raise
            lines = []  # it was done all the same
        finally:
            _end(process)
        output.seek(0)
        if process.returncode == 0:
            return output.read()
        if process.returncode < 0:
            raise CommandKilled(f"`mainstem {words[0]}` was killed by signal {-process.returncode}", hint="try again")
        said = [line.removeprefix(_NAME) for line in lines if line.startswith(_NAME)] or lines
        raise CommandFailed(said[-1] if said else f"`mainstem {words[0]}` ended with exit code {process.returncode}")


def _follow(
    process: "subprocess.Popen[bytes]", errors: str, tell: Callable[[str], None], pause: Callable[[float], object]
) -> list[str]:
    lines: list[str] = []
    with Path(errors).open(errors="replace") as said:
        while True:
            ended = process.poll() is not None
            for line in _whole_lines(said):
                lines.append(line)
                if not ended:
                    tell(line)
            if ended:
                return lines
            pause(LOOK_EVERY_SECONDS)


def _whole_lines(said: IO[str]) -> list[str]:
    """What has come since the last time; half a line is left for the next."""
    found: list[str] = []
    while True:
        position = said.tell()
        line = said.readline()
        if not line.endswith("\n"):
            said.seek(position)
            return found
        if line.strip():
            found.append(line.strip())


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
