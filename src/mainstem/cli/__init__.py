"""Doors for people: the terminal. A command parses, calls one function of a room and prints."""

import gc
import sys


def main() -> None:
    """The `mainstem` command: `mainstem.cli.commands.main`, whose imports Ctrl-C may meet as well."""
    gc.disable()  # importing leaves no garbage, and looking for it again and again is a seventh of a start
    try:
        from mainstem.cli import commands
    except KeyboardInterrupt:
        sys.exit(130)
    commands.main()
