"""Settings: one frozen struct per room, read from `mainstem.toml`, then from the environment, checked once at start."""

import os
import tomllib
from collections.abc import Mapping
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
        BadSetting: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadSetting(f"{path}: no such file", hint="give a project directory that holds a mainstem.toml") from None
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
