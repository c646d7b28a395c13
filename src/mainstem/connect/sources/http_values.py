"""From JSON to the values of an Avro schema: checked exactly, with the place of what does not fit.

    Avro                          JSON
    int, long                     a number without fraction, in range
    float, double                 a number
    string, enum, uuid            a string
    bytes, fixed                  base64
    decimal                       a number or a string; never rounded
    date, time-*                  ISO 8601 (`2013-01-01`, `05:15:00`), or the number Avro stores
    timestamp-*                   ISO 8601 with `Z` or an offset, or the number Avro stores
    local-timestamp-*             ISO 8601 without an offset, or the number Avro stores
    (all of them)                 a time of one day, anything else of the years 1 to 9999: readers can hold no other
    union                         the first type that fits, or {"type name": value}; null may be left out
    record                        an object; a field without default must be there, and unknown fields are refused

An unknown field is refused because it is most often a misspelt one, and to drop it in silence is to lose it.
"""

import base64
import math
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from mainstem.core.errors import UserError
from mainstem.registry.schema import AvroType, brief, cut, pointer_to, several, span

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FLOAT32_MAX: Final = 3.4028234663852886e38
# From here on it is rounded to infinity; programs write the most as 3.4028235e38.
_FLOAT32_LIMIT: Final = 3.4028235677973366e38
_INT: Final = (-(2**31), 2**31 - 1)
_LONG: Final = (-(2**63), 2**63 - 1)
_EXACT: Final = 2**53  # up to there each whole number is a float
_NUMBERS: Final = frozenset({int, float, Decimal})  # a decimal where a float would be another number
_REASON: Final = 500  # characters; an event may be refused 10,000 times in a request, and each reason is kept
_STEPS: Final = 10
_STEP: Final = 60  # characters
_REASONS: Final = 5
_NESTED: Final = frozenset({"record", "array", "map"})


class Unfit(UserError):
    """A value does not fit its schema; `pointer` is the place in the event (a JSON pointer). Both are cut to lengths
    a message can hold: keys, symbols and depth are the sender's.
    """

    def __init__(self, reason: str, *steps: str | int) -> None:
        self.reason = cut(reason, _REASON)
        super().__init__(self.reason)
        self.steps = list(steps)  # innermost first; who passes the error on adds its own

    @property
    def pointer(self) -> str:
        steps = [cut(str(step), _STEP) for step in self.steps[: -_STEPS - 1 : -1]]
        return pointer_to("", *steps) + ("/..." if len(self.steps) > _STEPS else "")

    def __str__(self) -> str:
        """The place and the reason in one line."""
        return f"{self.pointer or '/'}: {self.reason}"


def converter(schema: AvroType) -> Convert:
    """A function from decoded JSON to what fastavro writes with `schema`; it raises `Unfit`. One event at a time."""
    compiler = _Compiler()
    convert = compiler.compile(schema)

    def convert_event(value: Any) -> Any:
        try:
            return convert(value)
        finally:
            compiler.converted.clear()  # ids of values are theirs for as long as the event lives

    return convert_event


def _expected(what: object, value: Any) -> Unfit:
    return Unfit(f"expected {what}, found {brief(value)}")


class _Compiler:
    """One closure per node of the schema; a recursive record refers to its own closure through `records`."""

    def __init__(self) -> None:
        self.records: dict[str, Convert] = {}
        self.converted: dict[tuple[Callable[[], Convert], int], Any] = {}

    def once(self, convert: Callable[[], Convert]) -> Convert:
        """The function that `convert` gives, called once for each object or list of an event: its result or its error
        is given again. `convert` is asked when it runs, since a function may not be there yet.

        The branches of a union may begin alike, and what each of them converts of one value, each does of the values
        within: without this the innermost value is converted 2^depth times.
        """
        converted = self.converted

        def convert_once(value: Any) -> Any:
            if type(value) is not dict and type(value) is not list:
                return convert()(value)
            key = (convert, id(value))
            found = converted.get(key)
            if found is None:
                try:
                    found = convert()(value)
                except Unfit as error:
                    found = Unfit(error.reason, *error.steps)  # `error` gets the steps to it on its way out
                converted[key] = found
            if type(found) is Unfit:
                raise Unfit(found.reason, *found.steps)
            return found

        return convert_once

    def compile(self, node: AvroType) -> Convert:
        if node.logical:
            return _logical(node)
        match node.kind:
            case "int":
                return _integer(node, *_INT)
            case "long":
                return _integer(node, *_LONG)
            case "float" | "double":
                return _real(node)
            case "bytes" | "fixed":
                return _bytes(node)
            case "null" | "boolean" | "string" | "enum":
                return _plain(node)
            case "array" | "map" if node.items is not None:
                return (
                    _array(node, self.compile(node.items))
                    if node.kind == "array"
                    else _map(node, self.compile(node.items))
                )
            case "union":
                return self.union(node)
            case _:
                return self.record(node)

    def record(self, node: AvroType) -> Convert:
        if node.name in self.records:
            return self.records[node.name]
        # The closure is not there yet while the record's fields, which may refer to it, are being compiled.
        self.records[node.name] = self.once(lambda: convert)
        parts = [(field.name, self.compile(field.type)) for field in node.fields]
        optional, missing = _absent(node)
        names = frozenset(field.name for field in node.fields)
        told = several([field.name for field in node.fields])

        def convert(value: Any) -> Any:
            if type(value) is not dict:
                raise _expected(node, value)
            row = {}
            for name, part in parts:
                if name in value:
                    try:
                        row[name] = part(value[name])
                    except Unfit as error:
                        error.steps.append(name)
                        raise
                elif name in optional:
                    row[name] = optional[name]
                else:
                    raise Unfit(f"the field is missing, and {missing[name]}", name)
            if not names.issuperset(value):
                unknown = next(each for each in value if each not in names)
                raise Unfit(f"unknown field; {node} has {told}", unknown)
            return row

        return self.records[node.name]

    def union(self, node: AvroType) -> Convert:
        others = [branch for branch in node.branches if branch.kind != "null"]
        has_null = len(others) < len(node.branches)
        if len(others) == 1:
            inner = self.compile(others[0])
            label = others[0].name or others[0].kind
            nested = others[0].kind in _NESTED

            def convert_one(value: Any) -> Any:
                if value is None and has_null:
                    return None
                try:
                    found = inner(value)
                except Unfit:
                    if type(value) is not dict or len(value) != 1 or label not in value:
                        raise
                    found = inner(value[label])
                # With its type's name, fastavro need not look through all of it, at each level, for whether it fits.
                return (label, found) if nested else found

            # A map with the one key `map` is tried as it is, and as a label; so may be the maps within.
            return self.once(lambda: convert_one) if label == "map" else convert_one
        labelled = {branch.name or branch.kind: self.compile(branch) for branch in others}
        told = several(list(labelled))

        def convert(value: Any) -> Any:
            if value is None and has_null:
                return None
            if type(value) is dict and len(value) == 1 and next(iter(value)) in labelled:
                label = next(iter(value))
                return label, labelled[label](value[label])
            reasons: list[str] = []
            for label, inner in labelled.items():
                # fastavro takes (type name, value): left to itself it may write "A" as a uuid.
                try:
                    return label, inner(value)
                except Unfit as error:
                    if len(reasons) < _REASONS:
                        reasons.append(cut(f"{label}: {error}", _REASON // _REASONS))
            raise Unfit(f"found {brief(value)}, which fits none of {told} ({'; '.join(reasons)})")

        return convert


def _nullable(kind: AvroType) -> bool:
    return kind.kind == "null" or any(branch.kind == "null" for branch in kind.branches)


def _absent(node: AvroType) -> tuple[dict[str, Any], dict[str, str]]:
    """What stands for each field that may be left out, as fastavro writes it; and why the others may not."""
    optional: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for field in node.fields:
        if field.has_default:
            try:
                optional[field.name] = default_value(field.type, field.default)
            except Unfit as error:  # a registry looks at Avro's type alone
                missing[field.name] = f"no reader can hold its default: {error.reason}"
        elif _nullable(field.type):
            optional[field.name] = None
        else:
            missing[field.name] = f"it has no default ({field.type})"
    return optional, missing


def default_value(kind: AvroType, value: Any) -> Any:
    """The JSON default of a schema as a value: bytes are given as the characters of their codes.

    Raises:
        Unfit: it is none that may be posted, such as a day of the year 10000.
    """
    match kind.kind:
        case "union":
            first = kind.branches[0]
            return None if first.kind == "null" else (first.name or first.kind, default_value(first, value))
        case "bytes" | "fixed" if isinstance(value, str):
            data = value.encode("latin-1")
            if kind.logical == "decimal" and (
                not data or abs(int.from_bytes(data, "big", signed=True)) >= 10**kind.precision
            ):
                raise _expected(kind, value)
            return data
        case "record":
            return {
                field.name: default_value(field.type, value.get(field.name, field.default)) for field in kind.fields
            }
        case "array" if kind.items is not None:
            return [default_value(kind.items, each) for each in value]
        case "map" if kind.items is not None:
            return {name: default_value(kind.items, each) for name, each in value.items()}
        case "float" | "double":
            return _real(kind)(value)
        case _ if kind.logical:
            return _logical(kind)(value)
        case _:
            return value


def _plain(node: AvroType) -> Convert:
    if node.kind == "enum":
        expected = f"one of {several(node.symbols)}"

        def convert_symbol(value: Any) -> Any:
            if type(value) is str and value in node.symbol_set:
                return value
            raise _expected(expected, value)

        return convert_symbol
    kind: type = {"null": type(None), "boolean": bool, "string": str}[node.kind]

    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise _expected(node, value)

    return convert


def _integer(node: AvroType, lowest: int, highest: int) -> Convert:
    def convert(value: Any) -> Any:
        number = _whole(node, value)
        if lowest <= number <= highest:
            return number
        raise _expected(f"{node} ({lowest} to {highest})", value)

    return convert


def _whole(node: AvroType, value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():  # pandas and spreadsheets write 5.0
        if -_EXACT <= value <= _EXACT:
            return int(value)
        value = Decimal(repr(value))
    # Before it is a whole number, which may have as many digits as its exponent says.
    if type(value) is Decimal and _LONG[0] <= value <= _LONG[1] and value == value.to_integral_value():
        return int(value)
    raise _expected(node, value)


def _real(node: AvroType) -> Convert:
    limit = _FLOAT32_LIMIT if node.kind == "float" else math.inf
    expected = f"{node} (at most {_FLOAT32_MAX if node.kind == 'float' else sys.float_info.max:g})"

    def convert(value: Any) -> Any:
        if type(value) not in _NUMBERS:
            raise _expected(node, value)
        try:
            number = float(value)
        except OverflowError:
            raise _expected(expected, value) from None
        if -limit < number < limit:
            return number
        raise _expected(expected, value)

    return convert


def _bytes(node: AvroType) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise _expected(f"{node} in base64", value)
        try:
            data = base64.b64decode(value, validate=True)
        except ValueError:
            raise _expected(f"{node} in base64", value) from None
        if node.kind == "fixed" and len(data) != node.size:
            raise Unfit(f"expected {node.size} bytes in base64, found {len(data)}")
        return data

    return convert


def _array(node: AvroType, inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _expected(node, value)
        result = []
        for number, each in enumerate(value):
            try:
                result.append(inner(each))
            except Unfit as error:
                error.steps.append(number)
                raise
        return result

    return convert


def _map(node: AvroType, inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected(node, value)
        result = {}
        for name, each in value.items():
            try:
                result[name] = inner(each)
            except Unfit as error:
                error.steps.append(name)
                raise
        return result

    return convert


def _logical(node: AvroType) -> Convert:
    if node.logical == "decimal":
        return _decimal(node)
    if node.logical == "duration":
        return _bytes(node)
    if node.logical == "uuid":
        return _uuid(node)
    return _moment(node)


def _moment(node: AvroType) -> Convert:
    what, _, unit = node.logical.rpartition("-")
    read = _TEXTS[what or unit]
    numbers = span(node.logical)
    years = "" if what == "time" else ", in the years 1 to 9999"
    expected = f"{node} ({numbers[0]} to {numbers[-1]}{years})"

    def convert(value: Any) -> Any:
        number = read(value, unit) if type(value) is str else _whole(node, value)
        if number in numbers:
            return number
        raise _expected(expected, value)

    return convert


_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _decimal(node: AvroType) -> Convert:
    def convert(value: Any) -> Any:
        # Python takes more: spaces, `1_000`, and the digits of all scripts.
        if not (_DECIMAL.fullmatch(value) if type(value) is str else type(value) in _NUMBERS):
            raise _expected(node, value)
        try:
            number = Decimal(repr(value) if type(value) is float else value)  # repr: what was written, not its binary
        except InvalidOperation:
            raise _expected(node, value) from None
        if not number.is_finite():
            raise _expected(node, value)
        # By digits: arithmetic would round to the context's 28 digits, or overflow.
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        kept = len(digits)
        while kept and digits[kept - 1] == 0:
            kept -= 1
        if kept == 0:
            return Decimal(0)
        exponent += len(digits) - kept
        if -exponent > node.scale:
            raise Unfit(f"expected at most {node.scale} digits after the point, found {brief(value)}")
        if kept + exponent + node.scale > node.precision:
            raise Unfit(f"expected at most {node.precision} digits with scale {node.scale}, found {brief(value)}")
        return Decimal((sign, digits[:kept], exponent))

    return convert


# Python takes signs and underscores for digits, too.
_UUID = re.compile(r"(urn:uuid:)?\{?[0-9a-fA-F]{8}(-?)([0-9a-fA-F]{4}\2){3}[0-9a-fA-F]{12}\}?")


def _uuid(node: AvroType) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not str or not _UUID.fullmatch(value):
            raise _expected(node, value)
        found = uuid.UUID(value)
        return found.bytes if node.kind == "fixed" else str(found)  # fastavro knows uuids as strings only

    return convert


def _date(text: str, _: str) -> int:
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH_DAY
    except ValueError:
        raise _expected("a date (YYYY-MM-DD)", text) from None


def _time(text: str, unit: str) -> int:
    try:
        found = time.fromisoformat(text)
    except ValueError:
        raise _expected("a time (HH:MM:SS)", text) from None
    if found.tzinfo is not None:
        raise _expected("a time without a zone", text)
    micros = ((found.hour * 60 + found.minute) * 60 + found.second) * 1_000_000 + found.microsecond
    return _in_unit(micros, unit, text)


def _timestamp(text: str, unit: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _expected("a timestamp (2013-01-01T05:00:00Z)", text) from None
    if found.tzinfo is None:
        raise _expected("a timestamp with its zone (add Z for UTC)", text)
    elapsed = found - _EPOCH
    return _in_unit((elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds, unit, text)


def _local_timestamp(text: str, unit: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _expected("a local timestamp (2013-01-01T05:00:00)", text) from None
    if found.tzinfo is not None:
        raise _expected("a local timestamp, without a zone", text)
    elapsed = found - _LOCAL_EPOCH
    return _in_unit((elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds, unit, text)


def _in_unit(micros: int, unit: str, text: str) -> int:
    """`micros`, which Python has read of `text`, and the digits that it leaves out after the sixth, in `unit`."""
    number, rest = divmod(micros * 1000 + _nanos_left_out(text), _NANOS[unit])
    if rest:
        raise _expected(f"whole {unit.removesuffix('s')}seconds", text)
    return number


def _nanos_left_out(text: str) -> int:
    found = _LEFT_OUT.search(text)
    if found is None:
        return 0
    digits = found[1].rstrip("0")
    if len(digits) > 3 or "+" in text[10 : found.start()] or "-" in text[10 : found.start()]:  # or those of an offset
        raise _expected("at most nine digits of a second", text)
    return int(digits.ljust(3, "0"))


_LEFT_OUT = re.compile(r"[.,][0-9]{6}([0-9]+)")
_NANOS: Final = {"millis": 1_000_000, "micros": 1_000, "nanos": 1}

_TEXTS: Mapping[str, Callable[[str, str], int]] = {
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "local-timestamp": _local_timestamp,
}
