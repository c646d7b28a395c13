"""How deep a value may be, and of how many parts: checked on its bytes before fastavro reads them.

fastavro descends in C, where 5,000 levels end the process, and a value of a recursive schema has one for every byte or
two. Values that take no byte (nulls, records without fields) come in any number: ten bytes say that an array has 2**62.
Few schemas have either, and only their values are walked through here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mainstem.registry.schema import PRIMITIVES

DEEPEST: Final = 500  # records, arrays, maps and unions inside of each other: what is decoded has to become JSON, too
FREE: Final = 100_000  # parts that any value may have, whatever its bytes
PER_BYTE: Final = 10
_LONGEST_NUMBER: Final = 10  # bytes of 2**63 - 1
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class _Unbounded(Exception):
    """The bytes of a value do not bound what is in it."""


def needs_walk(schema: Any, names: Mapping[str, Any]) -> bool:
    """Whether a value of `schema` may be deeper than `DEEPEST`, or of far more parts than bytes.

    `schema` is what `fastavro.parse_schema` gave, `names` the named types that it put down on the way.
    """
    try:
        _measured(schema, names, {}, 1)
    except (_Unbounded, RecursionError):  # the second: called from deep inside of other calls
        return True
    return False


def _measured(kind: Any, names: Mapping[str, Any], known: dict[str, tuple[int, bool]], level: int) -> tuple[int, bool]:
    """How many levels a value of `kind` has, and whether it takes no byte; `level` is how many are around it."""
    if level > DEEPEST:  # a recursive schema comes to it for sure
        raise _Unbounded
    empty, led = False, True  # a branch of a union has a byte in front of it, a map's value its key: they may be empty
    parts: list[Any] = []
    if isinstance(kind, list):
        parts = kind
    else:
        kind = _resolved(kind, names)
        if kind.get("name") in known:
            return known[kind["name"]]
        match kind["type"]:
            case "record" | "error":
                parts, led = [field["type"] for field in kind["fields"]], False
            case "array":
                parts, led = [kind["items"]], False
            case "map":
                parts = [kind["values"]]
        empty = not parts and (kind["type"] in {"null", "record", "error"} or kind.get("size") == 0)
    height = 0
    for part in parts:
        inner, nothing = _measured(part, names, known, level + 1)
        if nothing and not led:  # such a one in another, twice, and so on: two to the power of that many
            raise _Unbounded
        height = max(height, inner)
    if height == DEEPEST:
        raise _Unbounded
    if isinstance(kind, dict) and "name" in kind:
        known[kind["name"]] = height + 1, empty
    return height + 1, empty


def _resolved(kind: Any, names: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(kind, str):
        found: Mapping[str, Any] = kind
        return found
    return {"type": kind} if kind in PRIMITIVES else names[kind]


def walk(schema: Any, names: Mapping[str, Any], data: bytes) -> None:
    """Go through `data`, a value of `schema`, as its reader will.

    Raises:
        ValueError: deeper than `DEEPEST`, of more parts than its bytes stand for, or a number that is none of its kind.
        EOFError: it ends early.
    """
    cursor = _Cursor(data, names)
    left = FREE + PER_BYTE * len(data)
    under_way = [cursor.parts(schema)]
    while under_way:
        for kind in under_way[-1]:
            left -= 1
            if left < 0:
                raise ValueError(
                    f"expected at most {FREE + PER_BYTE * len(data)} parts in {len(data)} bytes, found more"
                )
            if len(under_way) == DEEPEST:
                raise ValueError(f"nested more than {DEEPEST} levels deep")
            under_way.append(cursor.parts(kind))
            break
        else:
            under_way.pop()


class _Cursor:
    """A place in the bytes of a value."""

    def __init__(self, data: bytes, names: Mapping[str, Any]) -> None:
        self.data = data
        self.names = names
        self.position = 0

    def parts(self, kind: Any) -> Iterator[Any]:
        """The types of what is directly inside of a value of `kind`;
        each has to be passed before the next is asked for.
        """
        if isinstance(kind, list):
            branch = self.number()
            if branch not in range(len(kind)):
                raise ValueError(f"expected one of {len(kind)} branches of a union, found number {branch}")
            yield kind[branch]
            return
        kind = _resolved(kind, self.names)
        match kind["type"]:
            case "record" | "error":
                for field in kind["fields"]:
                    yield field["type"]
            case "array":
                for _ in self.entries():
                    yield kind["items"]
            case "map":
                for _ in self.entries():
                    self.skip(self.number())
                    yield kind["values"]
            case "int" | "long" | "enum":
                self.number()
            case "string" | "bytes":
                self.skip(self.number())
            case "fixed":
                self.skip(kind["size"])
            case other:
                self.skip(_SIZES[other])

    def entries(self) -> Iterator[None]:
        """Once for every entry of an array or a map, block by block."""
        while count := self.number():
            if count < 0:  # then the block's size in bytes follows
                count = -count
                self.number()
            for _ in range(count):
                yield

    def number(self) -> int:
        """Zig-zag, seven bits per byte, the lowest first."""
        number = 0
        for place in range(_LONGEST_NUMBER):
            self.skip(1)
            byte = self.data[self.position - 1]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise ValueError(f"a number of more than {_LONGEST_NUMBER} bytes")

    def skip(self, size: int) -> None:
        if size < 0:
            raise ValueError(f"expected a length in bytes, found {size}")
        self.position += size
        if self.position > len(self.data):
            raise EOFError(f"expected {self.position} bytes or more, found {len(self.data)}")
