"""Avro schemas: parsed, checked, and written in one canonical form.

The parser is ours because the registry owes its users a place and a reason ("/fields/2/type: unknown type 'strng'"),
and because the compatibility checker needs the place of every part. https://avro.apache.org/docs/1.12.0/specification/
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from mainstem.registry.errors import InvalidSchema

DEEPEST = 200  # levels of JSON; what people write has 20
PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_WORDS: Final = PRIMITIVES | NAMED | {"array", "map"}

# Logical type -> the types it may annotate. Others are unknown, and by the specification ignored.
LOGICAL: Final[Mapping[str, frozenset[str]]] = {
    "decimal": frozenset({"bytes", "fixed"}),
    "uuid": frozenset({"string", "fixed"}),
    "date": frozenset({"int"}),
    "time-millis": frozenset({"int"}),
    "time-micros": frozenset({"long"}),
    "timestamp-millis": frozenset({"long"}),
    "timestamp-micros": frozenset({"long"}),
    "timestamp-nanos": frozenset({"long"}),
    "local-timestamp-millis": frozenset({"long"}),
    "local-timestamp-micros": frozenset({"long"}),
    "local-timestamp-nanos": frozenset({"long"}),
    "duration": frozenset({"fixed"}),
}

_SIZES: Final = {"uuid": 16, "duration": 12}  # in bytes, of the fixed that they annotate
_LARGEST_FIXED: Final = 2**31 - 1  # bytes, in Java

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_INT, _LONG = range(-(2**31), 2**31), range(-(2**63), 2**63)
_DAY_SECONDS: Final = 86_400
_YEAR_1, _YEAR_10000 = -62_135_596_800, 253_402_300_800  # where they begin, in seconds since 1970
_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_NO_DEFAULT: Final = object()
_JSON: Final = json.JSONEncoder(default=str, ensure_ascii=False)


class AvroType(msgspec.Struct, eq=False):
    """One node of a schema. A recursive schema is a cycle of nodes: compare by identity, never walk blindly.

    `kind` is `null` … `string`, `record`, `enum`, `fixed`, `array`, `map` or `union`; the fields that do not belong to
    it are empty. `pointer` is the node's place in the text it came from (a JSON pointer).
    """

    kind: str
    pointer: str
    logical: str = ""
    precision: int = 0
    scale: int = 0
    name: str = ""  # with its namespace
    aliases: tuple[str, ...] = ()
    fields: "tuple[AvroField, ...]" = ()
    symbols: tuple[str, ...] = ()
    symbol_set: frozenset[str] = frozenset()  # the same: 1 MB has 100,000, too many to walk for each question
    symbol_default: str | None = None
    size: int = 0
    items: "AvroType | None" = None  # of an array; the values of a map
    branches: "tuple[AvroType, ...]" = ()
    attributes: Mapping[str, Any] = {}  # what the specification does not define, e.g. "mainstem": "change"

    @property
    def short_name(self) -> str:
        """The name without its namespace: what a reader's and a writer's type must share."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        """What a person calls it: `long (timestamp-micros)`, `record shop.Order`, `union of null, string`."""
        if self.kind == "union":
            return f"union of {several(self.branches)}"
        if self.kind in {"array", "map"}:
            return f"{self.kind} of {self.items.kind if self.items else '?'}"
        text = f"{self.kind} {cut(self.name, 100)}" if self.name else self.kind
        if self.logical == "decimal":
            return f"{text} (decimal {self.precision},{self.scale})"
        return f"{text} ({self.logical})" if self.logical else text


class AvroField(msgspec.Struct, eq=False):
    """A field of a record; `default` is JSON, and `has_default` tells null from none."""

    name: str
    type: AvroType
    pointer: str
    has_default: bool = False
    default: Any = None
    aliases: tuple[str, ...] = ()


def parse(text: str, references: Iterable[str] = (), *, lenient: bool = False) -> AvroType:
    """Check the schema in `text`. `references` are the texts of schemas whose named types it may use,
    dependencies first.

    With `lenient`, as for what is stored already: another registry or an older specification may have taken it. A
    logical type that does not fit is ignored, as readers do; defaults and the letters of names are not looked at.

    Raises:
        InvalidSchema: not JSON, or not a schema; the message starts with the JSON pointer of the place.
    """
    names: dict[str, AvroType] = {}
    for reference in references:
        # The same type may come in through two of them: the later text wins, as it does for the Java parser's callers.
        _Parser(names, may_redefine=True, lenient=True).parse(load(reference), "", "")
    return _Parser(names, may_redefine=False, lenient=lenient).parse(load(text), "", "")


def fallbacks(text: str) -> dict[str, str]:
    """What names stand for that the specification does not find in `text`, but Java does: `shop.Address` -> `Address`.

    That is a type of no namespace, used by its name inside of a namespace.

    Raises:
        InvalidSchema: not JSON, or not a schema.
    """
    parser = _Parser({}, may_redefine=False, lenient=True)
    parser.parse(load(text), "", "")
    return parser.fallbacks


def canonical(text: str) -> str:
    """The schema as we store and compare it: no spaces, attributes in the specification's order,
    names split the same way.

    Two texts of the same canonical form are one schema with one id. Docs, aliases and custom attributes stay: they are
    part of what a team agreed on, unlike in Avro's "parsing canonical form".

    Raises:
        InvalidSchema: not JSON, or it holds a number or a character that JSON cannot say.
    """
    tree = _canonical(load(text), "")
    try:
        result = json.dumps(tree, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        result.encode()
    except UnicodeEncodeError:
        raise InvalidSchema(
            "a text holds one half of a surrogate pair (\\ud800 to \\udfff) without the other"
        ) from None
    except ValueError:
        raise InvalidSchema("a number is NaN, or further from 0 than a double can be") from None
    return result


def load(text: str) -> Any:
    """The JSON of a schema; a bare type name (`string`) is a schema too, as Confluent's registry has it.

    Raises:
        InvalidSchema: not JSON, or nested so deeply that walking through it could end in Python's recursion limit.
    """
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise InvalidSchema(f"not JSON: {error}") from None
    except RecursionError:
        raise InvalidSchema(f"nested more than {DEEPEST} levels deep") from None
    level, depth = [tree], 0
    while level := [child for node in level for child in _children(node)]:
        depth += 1
        if depth > DEEPEST:
            raise InvalidSchema(f"nested more than {DEEPEST} levels deep")
    return tree


def is_change(text: str) -> bool:
    """Whether a schema is that of a canonical change record, not of the rows themselves: `"mainstem": "change"` is one
    of its attributes. What is no Avro schema is none: another registry may have taken it, say one of Protobuf.
    """
    try:
        tree = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(tree, dict) and tree.get("mainstem") == "change"


def _children(node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def pointer_to(pointer: str, *steps: str | int) -> str:
    """`pointer` extended by `steps`, escaped as RFC 6901 says."""
    return pointer + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


class _Parser:
    """One pass over the JSON of a schema; `names` collects the named types on the way,
    since later parts refer to them.
    """

    def __init__(self, names: dict[str, AvroType], *, may_redefine: bool, lenient: bool) -> None:
        self.names = names
        self.may_redefine = may_redefine
        self.lenient = lenient
        self.defined: set[str] = set()
        self.fallbacks: dict[str, str] = {}
        self.defaults: list[tuple[AvroType, Any, str]] = []  # checked last: a default may be of a type still being read

    def parse(self, tree: Any, namespace: str, pointer: str) -> AvroType:
        result = self.read(tree, namespace, pointer)
        for kind, default, place in self.defaults:
            problem = misfit(kind.branches[0] if kind.kind == "union" else kind, default)
            if problem:
                raise InvalidSchema(f"the default is wrong: {problem}", pointer=place)
        return result

    def read(self, tree: Any, namespace: str, pointer: str) -> AvroType:
        if isinstance(tree, str):
            return self.named(tree, namespace, pointer)
        if isinstance(tree, list):
            return self.union(tree, namespace, pointer)
        if not isinstance(tree, dict):
            raise InvalidSchema(f"a type is a name, an object or a list, found {brief(tree)}", pointer=pointer)
        if "type" not in tree:
            raise InvalidSchema("the attribute 'type' is missing", pointer=pointer)
        kind = tree["type"]
        match kind:
            case "record" | "error":
                return self.record(tree, namespace, pointer)
            case "enum":
                return self.enum(tree, namespace, pointer)
            case "fixed":
                return self.fixed(tree, namespace, pointer)
            case "array" | "map":
                inner = "items" if kind == "array" else "values"
                if inner not in tree:
                    raise InvalidSchema(f"the attribute {inner!r} of an {kind} is missing", pointer=pointer)
                items = self.read(tree[inner], namespace, pointer_to(pointer, inner))
                return AvroType(kind, pointer, items=items, attributes=custom(tree))
            case str() if kind in PRIMITIVES:
                return self.logical(AvroType(kind, pointer, attributes=custom(tree)), tree)
            case str():  # {"type": "shop.Order"}
                return self.named(kind, namespace, pointer_to(pointer, "type"))
            case _:
                problem = f"a type's 'type' is a name, found {brief(kind)}: write that in place of the object around it"
                raise InvalidSchema(problem, pointer=pointer_to(pointer, "type"))

    def named(self, name: str, namespace: str, pointer: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name, pointer)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self.names.get(full)
        if found is None and name in self.names:  # a type of no namespace, as Java has it
            found = self.names[name]
            self.fallbacks[full] = name
        if found is None:
            known = ", ".join(sorted(self.names)) or "none"
            raise InvalidSchema(f"unknown type {name!r} (named types defined before it: {known})", pointer=pointer)
        return found

    def define(self, tree: dict[str, Any], kind: str, namespace: str, pointer: str) -> tuple[AvroType, str]:
        """The node of a named type, entered under its name before its parts are read, and the namespace for those."""
        name = tree.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidSchema(f"a {kind} needs a 'name'", pointer=pointer)
        own = tree.get("namespace", namespace)
        full, space = full_name(name, own if isinstance(own, str) else "")
        for part in full.split("."):
            if not self.is_name(part):
                raise InvalidSchema(
                    f"{part!r} is not a name (letters, digits and _)", pointer=pointer_to(pointer, "name")
                )
        if full in PRIMITIVES and not self.lenient:
            raise InvalidSchema(
                f"{full!r} is the name of a primitive type: choose another, or give it a namespace",
                pointer=pointer_to(pointer, "name"),
            )
        if full in self.defined or (full in self.names and not self.may_redefine):
            raise InvalidSchema(f"the type {full!r} is defined twice", pointer=pointer_to(pointer, "name"))
        node = AvroType(kind, pointer, name=full, attributes=custom(tree))
        aliases = string_list(tree.get("aliases", []), "aliases", pointer)
        node.aliases = tuple(full_name(alias, space)[0] for alias in aliases)
        self.names[full] = node
        self.defined.add(full)
        return node, space

    def is_name(self, text: str) -> bool:
        return self.lenient or bool(_NAME.match(text))

    def record(self, tree: dict[str, Any], namespace: str, pointer: str) -> AvroType:
        node, space = self.define(tree, "record", namespace, pointer)
        fields = tree.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchema("a record needs a list 'fields'", pointer=pointer)
        found: list[AvroField] = []
        taken: set[str] = set()
        for number, field in enumerate(fields):
            place = pointer_to(pointer, "fields", number)
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise InvalidSchema("a field is an object with 'name' and 'type'", pointer=place)
            name = field["name"]
            if not self.is_name(name):
                raise InvalidSchema(
                    f"{name!r} is not a name (letters, digits and _)", pointer=pointer_to(place, "name")
                )
            if name in taken:
                raise InvalidSchema(f"the field {name!r} is defined twice", pointer=place)
            taken.add(name)
            kind = self.read(field["type"], space, pointer_to(place, "type"))
            default = field.get("default", _NO_DEFAULT)
            if default is not _NO_DEFAULT and not self.lenient:
                self.defaults.append((kind, default, pointer_to(place, "default")))
            found.append(
                AvroField(
                    name,
                    kind,
                    place,
                    has_default=default is not _NO_DEFAULT,
                    default=None if default is _NO_DEFAULT else default,
                    aliases=string_list(field.get("aliases", []), "aliases", place),
                )
            )
        node.fields = tuple(found)
        return node

    def enum(self, tree: dict[str, Any], namespace: str, pointer: str) -> AvroType:
        node, _ = self.define(tree, "enum", namespace, pointer)
        node.symbols = string_list(tree.get("symbols"), "symbols", pointer)
        seen: set[str] = set()
        for number, symbol in enumerate(node.symbols):
            if not self.is_name(symbol) or symbol in seen:
                place = pointer_to(pointer, "symbols", number)
                raise InvalidSchema(f"the symbol {symbol!r} is no name or is there twice", pointer=place)
            seen.add(symbol)
        node.symbol_set = frozenset(seen)
        default = tree.get("default")
        if default is not None and default not in node.symbols:
            if self.lenient:
                return node
            raise InvalidSchema(f"the default {default!r} is not a symbol", pointer=pointer_to(pointer, "default"))
        node.symbol_default = default
        return node

    def fixed(self, tree: dict[str, Any], namespace: str, pointer: str) -> AvroType:
        node, _ = self.define(tree, "fixed", namespace, pointer)
        size = tree.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidSchema(f"a fixed needs a 'size' in bytes, found {brief(size)}", pointer=pointer)
        node.size = size
        return self.logical(node, tree)

    def union(self, tree: list[Any], namespace: str, pointer: str) -> AvroType:
        branches = tuple(self.read(each, namespace, pointer_to(pointer, number)) for number, each in enumerate(tree))
        if not branches:
            raise InvalidSchema("a union needs at least one type", pointer=pointer)
        seen: set[str] = set()
        for branch in branches:
            if branch.kind == "union":
                raise InvalidSchema("a union directly inside a union", pointer=branch.pointer)
            label = branch.name or branch.kind
            if label in seen:
                raise InvalidSchema(f"the union holds {label!r} twice", pointer=branch.pointer)
            seen.add(label)
        return AvroType("union", pointer, branches=branches)

    def logical(self, node: AvroType, tree: dict[str, Any]) -> AvroType:
        name = tree.get("logicalType")
        if isinstance(name, str) and name in LOGICAL:
            try:
                self.annotate(node, name, tree)
            except InvalidSchema:
                if not self.lenient:
                    raise
        return node

    def annotate(self, node: AvroType, name: str, tree: dict[str, Any]) -> None:
        if node.kind not in LOGICAL[name]:
            allowed = " or ".join(sorted(LOGICAL[name]))
            place = pointer_to(node.pointer, "logicalType")
            raise InvalidSchema(f"{name} annotates {allowed}, not {node.kind}", pointer=place)
        if node.kind == "fixed" and name in _SIZES and node.size != _SIZES[name]:
            problem = f"a {name} on a fixed takes {_SIZES[name]} bytes, found {node.size}"
            raise InvalidSchema(problem, pointer=node.pointer)
        if name == "decimal":
            node.precision, node.scale = self.decimal(node, tree)
        node.logical = name

    def decimal(self, node: AvroType, tree: dict[str, Any]) -> tuple[int, int]:
        precision, scale = tree.get("precision"), tree.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision == 0:
            raise InvalidSchema(
                f"a decimal needs precision > 0 and 0 <= scale <= precision, found {precision!r} and {scale!r}",
                pointer=node.pointer,
            )
        digits = math.floor((8 * min(node.size, _LARGEST_FIXED) - 1) * math.log10(2))
        if node.kind == "fixed" and precision > digits:
            raise InvalidSchema(
                f"a fixed of {node.size} bytes holds decimals of at most {max(digits, 0)} digits, found {precision}",
                pointer=node.pointer,
            )
        return precision, scale


def full_name(name: str, namespace: str) -> tuple[str, str]:
    """`name` with its namespace, and that namespace: a dotted name brings its own."""
    if "." in name:
        return name.removeprefix("."), name.rpartition(".")[0].removeprefix(".")
    return (f"{namespace}.{name}" if namespace else name), namespace


def custom(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attributes that Avro does not define."""
    return {name: value for name, value in tree.items() if name not in _ORDER}


def string_list(value: Any, what: str, pointer: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidSchema(f"{what!r} is a list of names, found {brief(value)}", pointer=pointer)
    return tuple(value)


def span(logical: str) -> range:
    """The numbers that a date, a time or a timestamp may be: a time of one day, anything else of the years 1 to 9999.

    Avro's numbers reach further, but readers do not: Python has no other years, and Spark's sums overflow at the ends.
    """
    kind, _, unit = logical.rpartition("-")
    if logical == "date":
        return range(_YEAR_1 // _DAY_SECONDS, _YEAR_10000 // _DAY_SECONDS)
    per_second = _PER_SECOND[unit]
    if kind == "time":
        return range(_DAY_SECONDS * per_second)
    return range(max(_LONG.start, _YEAR_1 * per_second), min(_LONG.stop, _YEAR_10000 * per_second))


def brief(value: Any) -> str:
    """`value` as JSON, cut to a length a message can hold."""
    if isinstance(value, Decimal):
        return cut(str(value), 60)
    text = ""
    for part in _JSON.iterencode(value):  # not all of it: it may be 1 MB, nested as deep as Python can go
        text += part
        if len(text) > 60:
            break
    return cut(text.encode(errors="backslashreplace").decode(), 60)


def cut(text: str, length: int) -> str:
    """`text`, or its beginning where it has more than `length` characters."""
    return text if len(text) <= length else text[: length - 3] + "..."


def several(names: Sequence[object]) -> str:
    """The first 20 of `names`, each cut to a length a message can hold, and how many more there are."""
    text = ", ".join(cut(str(name), 60) for name in names[:20])
    return text if len(names) <= 20 else f"{text} and {len(names) - 20} more"


def misfit(kind: AvroType, value: Any) -> str:
    """Why the JSON `value` is no default for `kind`; empty if it is one. In a union, the first branch counts."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    integer = number and (isinstance(value, int) or value.is_integer())
    fits: bool
    match kind.kind:
        case "null":
            fits = value is None
        case "boolean":
            fits = isinstance(value, bool)
        case "int":
            fits = integer and int(value) in _INT
        case "long":
            fits = integer and int(value) in _LONG
        case "float" | "double":
            fits = number and (isinstance(value, float) or abs(value) <= sys.float_info.max)
        case "string":
            fits = isinstance(value, str)
        case "bytes":
            fits = isinstance(value, str) and all(ord(each) < 256 for each in value)
        case "fixed":
            fits = isinstance(value, str) and len(value) == kind.size and all(ord(each) < 256 for each in value)
        case "enum":
            fits = isinstance(value, str) and value in kind.symbol_set
        case "union":
            return misfit(kind.branches[0], value)
        case _:
            return _misfit_of_parts(kind, value)
    return "" if fits else f"expected {kind}, found {brief(value)}"


def _misfit_of_parts(kind: AvroType, value: Any) -> str:
    if kind.items is not None:
        parts = value if kind.kind == "array" else list(value.values()) if isinstance(value, dict) else None
        if not isinstance(parts, list) or (kind.kind == "map" and not isinstance(value, dict)):
            return f"expected {kind}, found {brief(value)}"
        return next((problem for each in parts if (problem := misfit(kind.items, each))), "")
    if not isinstance(value, dict):
        return f"expected {kind}, found {brief(value)}"
    for field in kind.fields:
        if field.name not in value and not field.has_default:
            return f"the field {field.name!r} is missing"
        if field.name in value and (problem := misfit(field.type, value[field.name])):
            return f"{field.name}: {problem}"
    return ""


# The order in which canonical text gives the attributes; what is not listed follows as written.
_ORDER = ("type", "name", "namespace", "doc", "fields", "symbols", "size", "items", "values", "default", "order", "aliases",
          "logicalType", "precision", "scale")  # fmt: skip


def _canonical(tree: Any, namespace: str) -> Any:
    if isinstance(tree, str):
        space, _, name = tree.rpartition(".")
        # Without its namespace, `shop.string` would be the primitive, and `shop.record` in an object a record.
        return name if space and space == namespace and name not in _WORDS else tree
    if isinstance(tree, list):
        return [_canonical(branch, namespace) for branch in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get("type")
    if set(tree) == {"type"} and kind not in NAMED:
        return _canonical(kind, namespace)
    result: dict[str, Any] = {}
    inner = namespace
    if kind in NAMED:
        own = tree.get("namespace", namespace)
        full, inner = full_name(str(tree.get("name", "")), own if isinstance(own, str) else "")
        tree = {**tree, "name": full.rpartition(".")[2], "namespace": inner}
        if inner == namespace:
            del tree["namespace"]
    for name in [*(each for each in _ORDER if each in tree), *(each for each in tree if each not in _ORDER)]:
        value = tree[name]
        match name:
            case "fields" if kind in {"record", "error"}:
                result[name] = [_canonical_field(field, inner) for field in value]
            case "items" | "values" if kind == ("array" if name == "items" else "map"):
                result[name] = _canonical(value, inner)
            case "type":
                result[name] = kind if kind in NAMED else _canonical(kind, namespace)
            case _:
                result[name] = value
    return result


def _canonical_field(field: Any, namespace: str) -> Any:
    order = [*(each for each in _ORDER if each in field), *(each for each in field if each not in _ORDER)]
    order.remove("name")
    return {
        name: _canonical(field[name], namespace) if name == "type" else field[name]
        for name in ["name", *order]
        if not (name == "order" and field[name] == "ascending")  # what is so anyway
    }
