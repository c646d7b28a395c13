"""What an error says of its cause, in one line: Python's own errors, ours, and the pages that Spark makes of one."""

import re

from mainstem.core.errors import MainstemError

MOST_LETTERS = 500
_CLASS = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")  # of Spark's errors: `[CAST_INVALID_INPUT] The value …`
_CALL = "An error occurred while calling"  # the call of py4j, not what failed in it
_CAUSE = "Caused by: "


def one_line(error: BaseException) -> str:
    """The line that says why: of an error in a Spark worker what Python said there, of one in Spark's JVM its cause.

    The type stands before what Python itself says, which is little without it (`KeyError: 'a'`).
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    frames = [number for number, line in enumerate(lines) if line.lstrip().startswith('File "')]
    said = [line for line in lines[frames[-1] :] if not line[0].isspace()] if frames else []
    found = said[0] if said else _of_java(lines) if lines[0].startswith(_CALL) and lines[1:] else _first(lines)
    plain = isinstance(error, MainstemError) or said or lines[0].startswith(_CALL) or _CLASS.match(found)
    return (found if plain else f"{type(error).__name__}: {found}")[:MOST_LETTERS]


def _of_java(lines: list[str]) -> str:
    """The innermost cause that has one of Spark's classes, from there on; where none has, what came out of the call."""
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    for text in (*reversed(causes), lines[1]):
        if found := _CLASS.search(text):
            return text[found.start() :]
    return _first(lines[1:])


def _first(lines: list[str]) -> str:
    first = lines[0].strip().removeprefix(": ")
    return f"{first} {lines[1].strip()}" if first.endswith(":") and lines[1:] else first  # what it announces
