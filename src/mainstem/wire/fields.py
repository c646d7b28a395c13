"""What a field of a kio class is: kio's classes are the schema of every message, in every version."""

from struct import Struct
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin

Buffer: TypeAlias = bytes | bytearray | memoryview

INT8: Final = Struct(">b")
INT16: Final = Struct(">h")
UINT16: Final = Struct(">H")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")

NUMBERS: Final = {
    "int8": INT8,
    "int16": INT16,
    "uint16": UINT16,
    "int32": INT32,
    "int64": INT64,
    "float64": Struct(">d"),
}


def take_apart(field_type: Any) -> tuple[Any, bool, bool]:
    """(type of one item, is an array, may be null)."""
    optional = get_origin(field_type) is UnionType
    if optional:
        field_type = next(argument for argument in get_args(field_type) if argument is not type(None))
    if get_origin(field_type) is tuple:
        item, _, _ = take_apart(get_args(field_type)[0])
        return item, True, optional
    return field_type, False, optional
