"""Settings: one frozen struct per room, read from `mainstem.toml`, then from the environment, checked once at start."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mainstem.core.errors import UserError

T = TypeVar("T")

PREFIX = "MAINSTEM_"


class BadSetting(UserError):
    """A setting that is unknown, has the wrong type, or is out of its range; the message names it and its file."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        BadSetting: the file is missing, cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadSetting(f"{path}: no such file", hint="give a project directory that holds a mainstem.toml") from None
    except OSError as error:
        raise BadSetting(f"{path}: expected a file to read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path}: not valid TOML: {error}") from None


def overlay_environment(tree: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """`tree` with every `MAINSTEM_<TABLE>__<SETTING>` variable laid over it.

    `MAINSTEM_LOG__SEGMENT_BYTES=1048576` sets `segment_bytes` in table `[log]`. Deeper tables have more double
    underscores. Variables without a double underscore are not settings.
    """
    result: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()
    }
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX) or "__" not in name:
            continue
        *tables, setting = name.removeprefix(PREFIX).lower().split("__")
        table = result
        for step in tables:
            inner = table.get(step)
            table[step] = dict(inner) if isinstance(inner, Mapping) else {}
            table = table[step]
        table[setting] = value
    return result


def variable_of(table: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The variable that brings a setting of `table` from the environment, the first by name."""
    prefix = f"{PREFIX}{table}__".upper()
    return next((name for name in sorted(environment) if name.startswith(prefix)), None)


def settings_from(environment: Mapping[str, str], load: Callable[[Mapping[str, str]], T], *, where: str) -> T:
    """What `load` makes of the file at `where` under `environment`; an error that a variable brings in names the variable.

    Raises:
        BadSetting: as `load` does.
    """
    try:
        return load(environment)
    except BadSetting as error:
        for name in sorted(environment):
            if name.startswith(PREFIX) and "__" in name and str(error).startswith(where):
                try:
                    load({other: value for other, value in environment.items() if other != name})
                except BadSetting:  # it is wrong without that one too
                    continue
                raise BadSetting(f"{name}{str(error).removeprefix(where)}", hint=error.hint) from None
        raise


def named_tables(tree: Mapping[str, Any], table: str, *, where: Path) -> dict[str, Any]:
    """The tables `[<table>.<name>]` by name.

    Raises:
        BadSetting: `table` holds something else, as `[[sources]]` and `sources = 5` do.
    """
    found = tree.get(table, {})
    wrong = None if isinstance(found, Mapping) else table
    if wrong is None:
        wrong = next((f"{table}.{name}" for name, each in found.items() if not isinstance(each, Mapping)), None)
    if wrong is not None:
        raise BadSetting(f"{where}: {wrong}: expected tables [{table}.NAME], found something else")
    return dict(found)


_INTERVAL = re.compile(r"(interval )?( ?\d+ (micro|milli)?(second|minute|hour|day|week)s?)+", re.IGNORECASE)


def check_interval(text: str) -> str:
    """`text`, if it is a time as Spark's triggers take it.

    Raises:
        ValueError: it is not.
    """
    if not _INTERVAL.fullmatch(text):
        raise ValueError(f"expected a number and a unit, such as '2 seconds', found {text!r}")
    return text


def convert(tree: Any, kind: type[T], *, where: str) -> T:
    """Check `tree` against the struct `kind`.

    Raises:
        BadSetting: an unknown field, a wrong type or a value out of range; the message starts with `where`.
    """
    try:
        return msgspec.convert(tree, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadSetting(
            f"{where}: {error}", hint="docs/settings.md lists every setting with its type and default"
        ) from None
