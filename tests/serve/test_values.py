from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pytest

from mainstem.serve.errors import BadQuery
from mainstem.serve.values import parse_value


@pytest.mark.parametrize(
    ("text", "sql_type", "value"),
    [
        ("N10156", "VARCHAR", "N10156"),
        ("-5", "BIGINT", -5),
        ("1.5", "DOUBLE", 1.5),
        ("true", "BOOLEAN", True),
        ("2013-01-31", "DATE", date(2013, 1, 31)),
        ("05:30:00", "TIME", time(5, 30)),
        ("2013-01-31T05:00:00Z", "TIMESTAMP WITH TIME ZONE", datetime(2013, 1, 31, 5, tzinfo=UTC)),
        ("2013-01-31T06:00:00+01:00", "TIMESTAMP WITH TIME ZONE", datetime(2013, 1, 31, 5, tzinfo=UTC)),
        ("2013-01-31 05:00:00", "TIMESTAMP WITH TIME ZONE", datetime(2013, 1, 31, 5, tzinfo=UTC)),
        ("2013-01-31T05:00:00", "TIMESTAMP", datetime(2013, 1, 31, 5)),
        ("12.30", "DECIMAL(10,2)", Decimal("12.30")),
        ("6f6b1a5c-0000-4000-8000-000000000000", "UUID", UUID("6f6b1a5c-0000-4000-8000-000000000000")),
    ],
)
def test_the_text_of_a_column_is_the_value_that_rows_have(text, sql_type, value):
    found = parse_value(text, "c", sql_type)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "sql_type"),
    [
        ("x", "INTEGER"),
        ("", "BIGINT"),
        ("1,5", "DOUBLE"),
        ("yes", "BOOLEAN"),
        ("31.1.2013", "DATE"),
        ("5", "TIME"),
        ("2013-01-31T05:00:00Z", "TIMESTAMP"),
        ("now", "TIMESTAMP WITH TIME ZONE"),
        ("0001-01-01T00:00:00+14:00", "TIMESTAMP WITH TIME ZONE"),
        ("9999-12-31T23:59:59-14:00", "TIMESTAMP WITH TIME ZONE"),
        ("x", "DECIMAL(10,2)"),
        ("1", "UUID"),
    ],
)
def test_what_is_none_is_told_with_what_is_expected(text, sql_type):
    with pytest.raises(BadQuery, match=r"^c: expected .*, found "):
        parse_value(text, "c", sql_type)
