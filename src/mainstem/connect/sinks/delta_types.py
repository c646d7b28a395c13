"""What a column of a table makes of values of another type, at any depth: what it cannot take as they are it must not
take. Spark's writers cast such values, and round them.
"""

import enum
import functools
import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, DecimalType

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
