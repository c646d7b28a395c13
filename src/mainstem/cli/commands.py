"""The `mainstem` command: its groups, its exit codes, and what a person is told of a failure."""

import contextlib
import errno
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from mainstem.core.errors import MainstemError, Superseded, UserError
from mainstem.core.process import PARENT, SUPERSEDED, open_standard_files

COMMANDS = {
    "audit": "mainstem.cli.audit:audit",
    "clean": "mainstem.cli.clean:clean",
    "doctor": "mainstem.cli.doctor:doctor",
    "job": "mainstem.cli.job:job",
    "log": "mainstem.cli.log:log",
    "plan": "mainstem.cli.plan:plan",
    "run": "mainstem.cli.run:run",
    "sink": "mainstem.cli.sink:sink",
    "status": "mainstem.cli.status:status",
    "tail": "mainstem.cli.tail:tail",
    "topic": "mainstem.cli.topic:topic",
    "up": "mainstem.cli.up:up",
}

MISUSE = 2
INTERRUPTED = 128 + signal.SIGINT
UNREAD = 128 + signal.SIGPIPE
TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h: a supervised process that failed and may be started again


FAULTS = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room within the quota, or raise it",
    errno.EFBIG: "raise the limit of a file's size: ulimit -f",
    errno.EROFS: "mount it for writing, or choose another directory",
    errno.EACCES: "check its owner and permissions",
    errno.EPERM: "check its owner and permissions",
    errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
}
"""What the machine may refuse anywhere, and what a person can do about it;
any other OSError that comes this far is a bug.
"""


class OutputClosed(Exception):
    """The reader of our output has gone, as `head` does."""


class MachineFault(MainstemError):
    """The machine refused something: no fault of the program's, and it may pass."""


class LazyGroup(click.Group):
    """Imports a command's module when the command is used: `mainstem log start` must not pay for Spark."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _closed_output():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_output():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        gc.freeze()
        gc.enable()
        assert isinstance(command, click.Command)
        return command


@contextlib.contextmanager
def _closed_output() -> Iterator[None]:
    """An error that click leaves alone: it makes exit code 1 of a BrokenPipeError, which says "no" here."""
    try:
        yield
    except BrokenPipeError as error:
        raise OutputClosed from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mainstem")
def group() -> None:
    """A log-centric data platform: one durable log, everything else subscribes to it."""


def main() -> None:
    """The `mainstem` command.

    Exit codes: 0 done, 1 the answer is no, 2 misuse or failure (one line says what to do), 130 interrupted by Ctrl-C,
    141 nobody reads the output any more. A bug is a failure: it shows its traceback. A process under a supervisor ends
    with 75 where it may be started again, and with 3 where a newer one has taken its work over.
    """
    open_standard_files()
    try:
        _load_kio()
        # What `ctx.exit` was given, or what the command returned: None.
        code = group.main(prog_name="mainstem", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        with contextlib.suppress(OSError):
            error.show()
        end(MISUSE)
    except click.ClickException as error:
        fail(misuse(error))
    except (click.Abort, KeyboardInterrupt):
        end(INTERRUPTED)
    except (OutputClosed, BrokenPipeError):
        end(UNREAD)
    except Exception as error:
        if (ours := for_people(error)) is not None:
            fail(ours)
        with contextlib.suppress(OSError):
            traceback.print_exc()
        end(TEMPORARY if PARENT in os.environ else MISUSE)
    else:
        end(code)


def _load_kio() -> None:
    """Where hypothesis is installed, kio imports it, and that leaves a directory where the command is called."""
    if "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]  # the import fails, as if not installed
        try:
            importlib.import_module("kio.static.primitive")
        finally:
            del sys.modules["hypothesis"]


def misuse(error: click.ClickException) -> UserError:
    """What click has to say, on one line."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"`{context.command_path} --help` says what it takes" if context is not None else ""
    return UserError(" ".join(error.format_message().split()).removesuffix("."), hint=hint)


def for_people(error: BaseException) -> MainstemError | None:
    """What to tell instead of a traceback; None for a bug."""
    if isinstance(error, MainstemError):
        return error
    if isinstance(error, BaseExceptionGroup):  # what a TaskGroup makes of an error in one of its tasks
        told = [for_people(each) for each in error.exceptions]
        return None if None in told else told[0]
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name or "")) is not None:
        from mainstem.standalone.doctor import not_installed

        return not_installed(error.name or "", extra)
    if isinstance(error, OSError) and error.errno in FAULTS:
        where = f"{error.filename}: " if error.filename is not None else ""
        return MachineFault(f"{where}{error.strerror}", hint=FAULTS[error.errno])
    return None


def extra_of(module: str) -> str | None:
    """The extra that brings a module; None where no extra does, and its absence is a bug."""
    from mainstem.standalone.doctor import EXTRAS

    package = module.partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if package in {m.partition(".")[0] for m in modules}), None)


def fail(error: MainstemError) -> NoReturn:
    """Print what was expected and found, then what to do, and exit with 2.

    Under a supervisor, 2 means that a person has to mend something first;
    whatever else went wrong is worth another try, unless a newer process has taken over.
    """
    from mainstem.cli.output import printable

    hint = f" ({error.hint})" if error.hint else ""
    with contextlib.suppress(OSError):
        click.echo(printable(f"mainstem: {error}{hint}"), err=True)
    if PARENT not in os.environ:
        end(MISUSE)
    end(SUPERSEDED if isinstance(error, Superseded) else MISUSE if isinstance(error, UserError) else TEMPORARY)


def end(code: int | None) -> NoReturn:
    """Exit with `code`, also where what was printed cannot be written: Python would try again, and make 120 of it."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:  # it is None where it was closed from the start
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
    sys.exit(code)
