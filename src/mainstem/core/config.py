"""Settings: one frozen struct per room, read from `mainstem.toml`, then from the environment, checked once at start."""

import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mainstem.core.errors import UserError
from mainstem.core.prepared import prepared
from mainstem.core.wrong_settings import in_one_line, what_to_do

T = TypeVar("T")

PREFIX = "MAINSTEM_"
PROJECT_FILE = "mainstem.toml"
"""A project is a directory that holds it."""


class BadSetting(UserError):
    """A setting that is unknown, has the wrong type, or is out of its range; the message names it and its file."""


def read_toml(path: Path, *, hint: str = "give a project directory that holds a mainstem.toml") -> dict[str, Any]:
    """The tables of a TOML file; `hint` is for one that is not there.

    Raises:
        BadSetting: the file is missing, cannot be read, or is not TOML.
    """
    import tomllib

    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadSetting(f"{path}: no such file", hint=hint) from None
    except OSError as error:
        raise BadSetting(
            f"{path}: expected a file to read: {error.strerror}", hint="it has to be a file that this user may read"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(
            f"{path}: not valid TOML: {error}", hint='a table is [name], a setting name = "text" or name = 5'
        ) from None


def overlay_environment(tree: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """`tree` with every `MAINSTEM_<TABLE>__<SETTING>` variable laid over it.

    `MAINSTEM_LOG__SEGMENT_BYTES=1048576` sets `segment_bytes` in table `[log]`. Deeper tables have more double
    underscores. Variables without a double underscore are not settings. Capitals do not count, and what a variable's
    name cannot hold is an underscore there: `MAINSTEM_SOURCES__WEB_SHOP__URL` sets `url` in `[sources.Web-Shop]`.

    Raises:
        BadSetting: two names of `tree` are meant by one.
    """
    result: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()
    }
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX) or "__" not in name:
            continue
        *tables, setting = name.removeprefix(PREFIX).lower().split("__")
        table = result
        for each in tables:
            step = _meant(table, each, name)
            inner = table.get(step)
            table[step] = dict(inner) if isinstance(inner, Mapping) else {}
            table = table[step]
        table[_meant(table, setting, name)] = value
    return result


def _meant(table: Mapping[str, Any], step: str, variable: str) -> str:
    """The name in `table` that `step` of `variable` means; itself where there is none yet."""
    if step in table:
        return step
    found = [name for name in table if re.sub("[^a-z0-9]", "_", name.lower()) == step]
    if len(found) > 1:
        raise BadSetting(
            f"{variable}: expected to mean one name, found {' and '.join(found)}",
            hint="name them so that they differ in more than capitals and signs",
        )
    return found[0] if found else step


def variable_of(table: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The variable that brings a setting of `table` from the environment, the first by name."""
    prefix = f"{PREFIX}{table}__".upper()
    return next((name for name in sorted(environment) if name.startswith(prefix)), None)


def settings_from(environment: Mapping[str, str], load: Callable[[Mapping[str, str]], T], *, where: str) -> T:
    """What `load` makes of the file at `where` under `environment`;
    an error that a variable brings in names the variable.

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


_INTERVAL = r"(interval )?( ?\d+ (micro|milli)?(second|minute|hour|day|week)s?)+"


def check_interval(text: str) -> str:
    """`text`, if it is a time as Spark's triggers take it.

    Raises:
        ValueError: it is not.
    """
    if not re.fullmatch(_INTERVAL, text, re.IGNORECASE):
        raise ValueError(f"expected a number and a unit, such as '2 seconds', found {text!r}")
    return text


def convert(tree: Any, kind: type[T], *, where: str) -> T:
    """Check `tree` against the struct `kind`.

    Raises:
        BadSetting: an unknown field, a wrong type or a value out of range; the message starts with `where`.
    """
    try:
        return msgspec.convert(tree, prepared(kind), strict=False)
    except msgspec.ValidationError as error:
        told = str(error)
        raise BadSetting(f"{where}: {in_one_line(told, tree, kind)}", hint=what_to_do(told, kind)) from None


def check_type(tree: Any, known: Collection[str], *, where: str) -> None:
    """Check the setting `type` of the table `tree`, which says what its other settings are.

    Raises:
        BadSetting: it is missing, or says none of `known`.
    """
    found = tree.get("type") if isinstance(tree, Mapping) else None
    if found not in known:
        expected = " or ".join(f'type = "{each}"' for each in sorted(known))
        raise BadSetting(
            f"{where}: expected {expected}, found {'no type' if found is None else repr(found)}",
            hint="give one of them",
        )
