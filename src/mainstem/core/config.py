"""Settings: one frozen struct per room, read from `mainstem.toml`, then from the environment, checked once at start."""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from mainstem.core.errors import UserError
from mainstem.core.prepared import prepared

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
        return msgspec.convert(tree, prepared(kind), strict=False)
    except msgspec.ValidationError as error:
        told = str(error)
        raise BadSetting(f"{where}: {_in_one_line(told, tree, kind)}", hint=_what_to_do(told, kind)) from None


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """What to do about an unknown name: take the nearest one that is known;
    where none is near, `otherwise` or all of them.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]}?" if close else otherwise or f"expected is one of {', '.join(names)}"


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


def in_parts(error: str) -> tuple[str, str, str]:
    """What msgspec says: the path of the setting ("" where it names none), what is wrong, and the type that was found
    ("" where that was right).
    """
    parts = re.fullmatch(r"(.+?)(?:, got `(\w+)`)? - at `\$\.(.+)`", error)
    if parts is None:
        return "", error, ""
    reason, kind, path = parts.groups(default="")
    return path, "expected" + reason.removeprefix("Expected") if reason.startswith("Expected") else reason, kind


_ENUM = "Invalid enum value '(.*)'"


def _steps(error: str, tree: Any, kind: Any) -> list[str]:
    """The path of what msgspec says; where that says `[...]`, the name of the first table that is wrong by itself."""
    path, _, _ = in_parts(error)
    *parts, last = path.split("[...]")
    steps: list[str] = []
    for part in parts:
        steps += part.removeprefix(".").split(".")
        tables = _found(tree, steps)
        names = tables if isinstance(tables, Mapping) else ()
        wrong = [name for name in names if _error_of(_nested([*steps, name], tables[name]), kind) == error]
        if not wrong:
            return path.split(".")
        steps.append(wrong[0])
    return steps + [step for step in last.split(".") if step]


def _error_of(tree: Any, kind: Any) -> str:
    try:
        msgspec.convert(tree, prepared(kind), strict=False)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _nested(steps: Sequence[str], value: Any) -> Any:
    return {steps[0]: _nested(steps[1:], value)} if steps else value


def _found(tree: Any, steps: Iterable[str]) -> Any:
    """What is at `steps` in `tree`; None where there is nothing."""
    for step in steps:
        tree = tree.get(step) if isinstance(tree, Mapping) else None
    return tree


def _in_one_line(error: str, tree: Any, of: Any) -> str:
    """What msgspec says of settings of the type `of`, with the setting first; and with its value where a number is
    expected: that is no secret.
    """
    path, reason, kind = in_parts(error)
    if not path:
        return re.sub("Expected `object`, got `(.+)`", r"expected a table of settings, found `\1`", error)
    steps = _steps(error, tree, of)
    setting = ".".join(steps)
    if (value := re.match(_ENUM, reason)) and (known := _texts(_field(of, path))):
        return f"{setting}: expected one of {', '.join(known)}, found {value[1]!r}"
    if not re.match(r"expected `(int|float)( \| null)?`", reason):
        reason = reason.replace("expected `object`", "expected a table of settings")
        return f"{setting}: {reason}, found `{kind}`" if kind else f"{setting}: {reason}"
    found = _found(tree, steps)
    return f"{setting}: {reason}" if found is None else f"{setting}: {reason}, found {found!r}"


def _what_to_do(error: str, kind: Any) -> str:
    """The hint for what msgspec says of settings of the type `kind`."""
    path, reason, _ = in_parts(error)
    if unknown := re.match(r"Object contains unknown field `(.+?)`", error):
        return suggestion(unknown[1], _fields(kind, _split(path)))
    field = _field(kind, path)
    if field is not None and (value := re.match(_ENUM, reason)):
        close = difflib.get_close_matches(value[1], _texts(field), 1)
        return f"did you mean {close[0]}?" if close else "give one of them"
    default = None if field is None else field.default
    told = isinstance(default, (int, float, str)) and default != ""
    return f"its default is {msgspec.json.encode(default).decode()}" if told else ""


def _texts(field: msgspec.structs.FieldInfo | None) -> list[str]:
    """What a setting takes, where that is one or more of some texts."""
    return [] if field is None else [text for text in _literals(field.type) if text]


def _literals(kind: Any) -> tuple[str, ...]:
    return get_args(kind) if get_origin(kind) is Literal else sum(map(_literals, get_args(kind)), ())


def _field(kind: Any, path: str) -> msgspec.structs.FieldInfo | None:
    """The field at `path`, which may go on to one of its values, as in `mechanisms[0]`."""
    *steps, last = _split(path) or [""]
    return _fields(kind, steps).get(last.partition("[")[0])


def _split(path: str) -> list[str]:
    return path.replace("[...]", "[]").split(".") if path else []


def _fields(kind: Any, steps: Sequence[str]) -> dict[str, msgspec.structs.FieldInfo]:
    """The fields of the struct at `steps` below the type `kind`, by name; none where there is no struct."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    if not steps:
        return fields
    name, inside, _ = steps[0].partition("[")
    if name not in fields:
        return {}
    inner = fields[name].type
    return _fields(get_args(inner)[-1] if inside else inner, steps[1:])
