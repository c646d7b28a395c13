"""Doors for people: the terminal. A command parses, calls one function of a room and prints."""

import sys


def main() -> None:
    """The `mainstem` command: `mainstem.cli.commands.main`, whose imports Ctrl-C may meet as well."""
    try:
        from mainstem.cli import commands
    except KeyboardInterrupt:
        sys.exit(130)
    commands.main()
