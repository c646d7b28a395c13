"""What a column of a table makes of values of another type, at any depth: what it cannot take as they are it must not
take. Spark's writers cast such values, and round them; so does its union of rows of several schemas.
"""

import enum
import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType, StructType

WIDENINGS = {("integer", "long"), ("integer", "double"), ("float", "double")}
"""What a column's type may become while its table stays: those of Avro's promotions that Delta can do."""


class Fit(enum.Flag):
    """What is to be done with a column so that it takes values; nothing, where all of them fit as they are."""

    AS_IS = 0
    MORE = enum.auto()  # it gets a field that it lacks
    WIDER = enum.auto()
    NEVER = enum.auto()


def fit(new: "DataType", old: "DataType") -> Fit:
    """How a column of type `old` takes values of type `new`; a field that these lack is null."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(new, StructType) and isinstance(old, StructType):
        has = {field.name.lower(): field.dataType for field in old}
        names = {field.name.lower(): field.dataType for field in new}
        common = (fit(kind, has[name]) for name, kind in names.items() if name in has)
        return functools.reduce(operator.or_, common, Fit.AS_IS if names.keys() <= has.keys() else Fit.MORE)
    if isinstance(new, ArrayType) and isinstance(old, ArrayType):
        return fit(new.elementType, old.elementType)
    if isinstance(new, MapType) and isinstance(old, MapType):
        return fit(new.keyType, old.keyType) | fit(new.valueType, old.valueType)
    if isinstance(new, DecimalType) and isinstance(old, DecimalType):
        return _fit_decimal(new, old)
    kinds = (new.typeName(), old.typeName())
    if kinds in WIDENINGS or kinds[0] == kinds[1]:
        return Fit.AS_IS
    return Fit.WIDER if kinds[::-1] in WIDENINGS else Fit.NEVER


def _fit_decimal(new: "DecimalType", old: "DecimalType") -> Fit:
    """By the digits before and after the point; Delta gives a column no fewer of either."""
    (before, after), (has_before, has_after) = ((each.precision - each.scale, each.scale) for each in (new, old))
    if before <= has_before and after <= has_after:
        return Fit.AS_IS
    return Fit.WIDER if before >= has_before and after >= has_after else Fit.NEVER


def joined(new: "DataType", old: "DataType") -> "DataType":
    """The type of a column of type `old` that has got values of type `new`, which `fit`."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(new, StructType) and isinstance(old, StructType):
        fields = {field.name.lower(): field for field in old}
        for field in new:
            has = fields.setdefault(field.name.lower(), field)
            fields[field.name.lower()] = StructField(has.name, joined(field.dataType, has.dataType))
        return StructType([*fields.values()])
    if isinstance(new, ArrayType) and isinstance(old, ArrayType):
        return ArrayType(joined(new.elementType, old.elementType))
    if isinstance(new, MapType) and isinstance(old, MapType):
        return MapType(joined(new.keyType, old.keyType), joined(new.valueType, old.valueType))
    return new if fit(new, old) == Fit.WIDER else old


def converted(values: "Column", kind: "DataType", wanted: "DataType") -> "Column":
    """Values of type `kind` as those of a type that takes them as they are."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if kind.simpleString() == wanted.simpleString():  # which says nothing of nulls
        return values
    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        return F.when(values.isNotNull(), F.struct(*converted_fields(values.getField, kind, wanted)))
    if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        element, wanted_element = kind.elementType, wanted.elementType
        return F.transform(values, lambda each: converted(each, element, wanted_element))
    if isinstance(kind, MapType) and isinstance(wanted, MapType):  # the keys of Avro's are strings
        value, wanted_value = kind.valueType, wanted.valueType
        return F.transform_values(values, lambda _, each: converted(each, value, wanted_value))
    return values.cast(wanted)


def converted_fields(get: "Callable[[str], Column]", kind: "StructType", wanted: "StructType") -> "list[Column]":
    """The fields of a row, of which `get` gives one by its name, as those of another; null where it lacks one."""
    from pyspark.sql import functions as F

    has = {field.name.lower(): field for field in kind}
    fields: list[Column] = []
    for field in wanted:
        mine = has.get(field.name.lower())
        value = (
            F.lit(None).cast(field.dataType)
            if mine is None
            else converted(get(mine.name), mine.dataType, field.dataType)
        )
        fields.append(value.alias(field.name))
    return fields
