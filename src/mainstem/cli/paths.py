"""Paths on the command line."""

from pathlib import Path
from typing import Any

import click


class _Directory(click.Path):
    """It may not exist so far, and who uses it tells where it is none. An empty text is what `--data "$DATA"` gives
    where the variable is not set, and must not mean the current one.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("expected a directory, found an empty text; the current one is '.'", param, ctx)
        return super().convert(value, param, ctx)


DIRECTORY = _Directory()
