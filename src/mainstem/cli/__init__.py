"""Doors for people: the terminal. A command parses, calls one function of a room and prints."""

import importlib
import os
import signal
import sys

import click

from mainstem.core.errors import MainstemError, UserError
from mainstem.core.process import PARENT

COMMANDS = {
    "audit": "mainstem.cli.audit:audit",
    "clean": "mainstem.cli.clean:clean",
    "doctor": "mainstem.cli.doctor:doctor",
    "job": "mainstem.cli.job:job",
    "log": "mainstem.cli.log:log",
    "plan": "mainstem.cli.plan:plan",
    "run": "mainstem.cli.run:run",
    "status": "mainstem.cli.status:status",
    "tail": "mainstem.cli.tail:tail",
    "topic": "mainstem.cli.topic:topic",
    "up": "mainstem.cli.up:up",
}

MISUSE = 2
INTERRUPTED = 128 + signal.SIGINT
TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h: a supervised process that failed and may be started again


class LazyGroup(click.Group):
    """Imports a command's module when the command is used: `mainstem log start` must not pay for Spark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mainstem")
def group() -> None:
    """A log-centric data platform: one durable log, everything else subscribes to it."""


def main() -> None:
    """The `mainstem` command.

    Exit codes: 0 done, 1 the answer is no, 2 misuse or failure (one line says what to do), 130 interrupted by Ctrl-C.
    """
    try:
        code = group.main(standalone_mode=False)  # what `ctx.exit` was given, or what the command returned: None
    except click.ClickException as error:
        error.show()
        sys.exit(MISUSE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, as `head` does
        sys.exit(0)
    except MainstemError as error:
        fail(error)
    except ModuleNotFoundError as missing:
        extra = extra_of(missing.name or "")
        if extra is None:
            raise
        fail(
            UserError(f"{missing.name}: not installed", hint=f"it comes with an extra: pip install 'mainstem[{extra}]'")
        )
    except ExceptionGroup as several:  # what a TaskGroup makes of an error in one of its tasks
        ours = first_of_ours(several)
        if ours is None:
            raise
        fail(ours)
    else:
        sys.exit(code)


def extra_of(module: str) -> str | None:
    """The extra that brings a module; None where no extra does, and its absence is a bug."""
    from mainstem.standalone.doctor import EXTRAS

    package = module.partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if package in modules), None)


def first_of_ours(several: BaseExceptionGroup[BaseException]) -> MainstemError | None:
    """The first error in the group, however deep, that is meant for people; None if a bug is among them."""
    _, bugs = several.split(MainstemError)
    if bugs is not None:
        return None
    first: BaseException = several
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, MainstemError) else None


def fail(error: MainstemError) -> None:
    """Print what was expected and found, then what to do, and exit with 2.

    Under a supervisor, 2 means that a person has to mend something first; whatever else went wrong is worth another try.
    """
    hint = f" ({error.hint})" if error.hint else ""
    click.echo(f"mainstem: {error}{hint}", err=True)
    supervised = PARENT in os.environ
    sys.exit(TEMPORARY if supervised and not isinstance(error, UserError) else MISUSE)
