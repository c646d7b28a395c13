"""Which values a column takes as they are, and which it has to become wider for."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from mainstem.connect.sinks.delta_types import Fit, fit, joined

INT, LONG, FLOAT, DOUBLE, TEXT = IntegerType(), LongType(), FloatType(), DoubleType(), StringType()


def struct(**fields: DataType):
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (INT, INT, Fit.AS_IS),
        (INT, LONG, Fit.AS_IS),
        (FLOAT, DOUBLE, Fit.AS_IS),
        (LONG, INT, Fit.WIDER),
        (DOUBLE, INT, Fit.WIDER),
        (LONG, DOUBLE, Fit.NEVER),  # not all of them are doubles
        (FLOAT, INT, Fit.NEVER),
        (TEXT, INT, Fit.NEVER),
        (DecimalType(10, 2), DecimalType(10, 2), Fit.AS_IS),
        (DecimalType(10, 2), DecimalType(12, 4), Fit.AS_IS),
        (DecimalType(12, 3), DecimalType(10, 2), Fit.WIDER),
        (DecimalType(20, 2), DecimalType(10, 2), Fit.WIDER),
        (DecimalType(10, 3), DecimalType(10, 2), Fit.NEVER),
        (DecimalType(10, 1), DecimalType(10, 2), Fit.NEVER),
        (INT, DecimalType(10, 0), Fit.NEVER),
        (struct(a=INT), INT, Fit.NEVER),
        (ArrayType(INT), MapType(TEXT, INT), Fit.NEVER),
    ],
)
@pytest.mark.parametrize(
    "within",
    [
        lambda kind: kind,
        lambda kind: struct(x=TEXT, place=kind),
        ArrayType,
        lambda kind: MapType(TEXT, kind),
        lambda kind: ArrayType(struct(place=MapType(TEXT, kind))),
    ],
)
def test_a_type_fits_alike_at_any_depth(within, new, old, expected):
    """What was within another was not looked at, nor were a decimal's digits: Spark rounded the values to fit."""
    assert fit(within(new), within(old)) == expected


def test_a_struct_may_get_fields_and_may_lack_them():
    assert fit(struct(A=INT, b=INT), struct(a=INT)) == Fit.MORE
    assert fit(struct(b=INT), struct(a=INT, B=LONG)) == Fit.AS_IS
    assert fit(struct(a=LONG, b=INT, c=INT), struct(a=INT, b=LONG)) == Fit.MORE | Fit.WIDER
    assert fit(struct(a=LONG, b=TEXT), struct(a=INT, b=INT)) & Fit.NEVER
    assert fit(MapType(LONG, TEXT), MapType(INT, TEXT)) == Fit.WIDER


def test_a_type_that_has_got_others_takes_all_of_them():
    """At any depth: wider here, with a field more there; names stay as they were first."""
    old = struct(a=INT, B=LONG, c=ArrayType(struct(x=FLOAT)), d=MapType(TEXT, DecimalType(10, 2)))
    new = struct(b=INT, A=LONG, c=ArrayType(struct(y=INT, X=DOUBLE)), d=MapType(TEXT, DecimalType(12, 3)), e=TEXT)
    both = struct(a=LONG, B=LONG, c=ArrayType(struct(x=DOUBLE, y=INT)), d=MapType(TEXT, DecimalType(12, 3)), e=TEXT)
    assert joined(new, old) == both
    assert fit(new, both) == fit(old, both) == Fit.AS_IS
