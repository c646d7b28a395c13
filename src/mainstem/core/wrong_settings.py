"""What is told of a setting that is wrong: msgspec's words in one line, the setting first, and what to do about it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

import msgspec

from mainstem.core.prepared import prepared

TLS_PROTOCOLS = "SSL or SASL_SSL"
SASL_PROTOCOLS = "SASL_SSL or SASL_PLAINTEXT"

_MOST_TOLD = 40
_ENUM = "Invalid enum value '(.*)'"


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """What to do about an unknown name: take the nearest one that is known;
    where none is near, `otherwise` or all of them.
    """
    names = tuple(sorted(known))
    close = nearest(name, names)
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    listed = f"expected is one of {', '.join(names[:_MOST_TOLD])}{more}"
    return f"did you mean {close}?" if close else otherwise or listed


@lru_cache(maxsize=64)  # a request may make the same mistake thousands of times, each worth a millisecond
def nearest(name: str, known: tuple[str, ...]) -> str:
    """That of the known names which `name` may have been meant to be; "" where none is alike."""
    from difflib import get_close_matches  # here: a start of the log with good settings needs none of it

    return next(iter(get_close_matches(name, known, 1)), "")


def without_effect(what: str, protocol: str, protocols: str) -> ValueError:
    """The refusal of a setting that would protect nothing with `protocol`; it is for `protocols`."""
    return ValueError(f"{what} has no effect with protocol {protocol}: set protocol to {protocols}, or leave it out")


def in_parts(error: str) -> tuple[str, str, str]:
    """What msgspec says: the path of the setting ("" where it names none), what is wrong, and the type that was found
    ("" where that was right).
    """
    parts = re.fullmatch(r"(.+?)(?:, got `(\w+)`)? - at `\$\.(.+)`", error)
    if parts is None:
        return "", error, ""
    reason, kind, path = parts.groups(default="")
    return path, "expected" + reason.removeprefix("Expected") if reason.startswith("Expected") else reason, kind


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


def in_one_line(error: str, tree: Any, of: Any) -> str:
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


def what_to_do(error: str, kind: Any) -> str:
    """The hint for what msgspec says of settings of the type `kind`."""
    path, reason, _ = in_parts(error)
    if unknown := re.match(r"Object contains unknown field `(.+?)`", error):
        of_its_own: Callable[[str], str] | None = None if path else getattr(kind, "hint_for", None)
        hint = of_its_own(unknown[1]) if of_its_own else ""
        return hint or suggestion(unknown[1].replace(".", "_"), _fields(kind, _split(path)))
    field = _field(kind, path)
    if field is not None and (value := re.match(_ENUM, reason)):
        return suggestion(value[1], _texts(field), "give one of them")
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
