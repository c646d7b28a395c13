"""`mainstem` as people run it: a process of its own, with its exit code and its stderr."""

import os
import subprocess
import sys

import click

from mainstem.cli.commands import group


def mainstem(*arguments, environment=None, timeout=120, **options):
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "mainstem", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, **(environment or {})},
        **options,
    )


def the_line(done):
    """The one line that a command which ended with exit code 2 said on stderr."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert line.startswith("mainstem: "), line
    return line


def every_command(parent=group, *path):
    """Every command below `parent`, with what people type for it."""
    context = click.Context(parent)
    for name in parent.list_commands(context):
        command = parent.get_command(context, name)
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from every_command(command, *path, name)
