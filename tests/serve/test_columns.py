import json

import pytest

from mainstem.core import UserError
from mainstem.serve.columns import TableShape, check_shapes, columns_of, quoted, wider


def record(*fields, **attributes) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields], **attributes}
    )


NESTED = {"type": "record", "name": "N", "fields": [{"name": "x y", "type": "int"}, {"name": "z", "type": "string"}]}
LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


@pytest.mark.parametrize(
    ("avro", "sql"),
    [
        ("boolean", "BOOLEAN"),
        ("int", "INTEGER"),
        (["null", "long"], "BIGINT"),
        ("float", "FLOAT"),
        ("double", "DOUBLE"),
        ("bytes", "BLOB"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "VARCHAR"),
        ({"type": "fixed", "name": "F", "size": 2}, "BLOB"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}, "DECIMAL(30,2)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2}, "VARCHAR"),
        ({"type": "int", "logicalType": "date"}, "DATE"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP WITH TIME ZONE"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "TIMESTAMP"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "BIGINT"),
        ({"type": "string", "logicalType": "uuid"}, "UUID"),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, "BLOB"),
        ({"type": "array", "items": ["null", "int"]}, "INTEGER[]"),
        ({"type": "map", "values": {"type": "array", "items": "string"}}, "MAP(VARCHAR, VARCHAR[])"),
        (NESTED, 'STRUCT("x y" INTEGER, "z" VARCHAR)'),
        (["int", "string"], "VARCHAR"),
        ("null", "VARCHAR"),
        (LIST, "VARCHAR"),
        ({"type": "record", "name": "N", "fields": []}, "VARCHAR"),
    ],
)
def test_the_type_of_a_column(avro, sql):
    assert columns_of(record(("a", avro))) == {"a": sql}


def test_of_change_records_the_rows_are_the_table():
    row = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
    assert columns_of(record(("op", "string"), ("after", ["null", row]), mainstem="change")) == {"id": "INTEGER"}


@pytest.mark.parametrize("schema", ['"string"', "{}"])
def test_what_is_no_record_is_no_table(schema):
    with pytest.raises(UserError):
        columns_of(schema)


def test_what_a_type_can_become():
    assert wider("INTEGER", "BIGINT") == wider("BIGINT", "INTEGER") == "BIGINT"
    assert wider("FLOAT", "BIGINT") == "FLOAT"
    assert wider("DATE", "DATE") == "DATE"
    assert wider("VARCHAR", "INTEGER") is None


def test_names():
    shape = TableShape({}, "stream")
    assert (shape.table("shop.orders-1"), TableShape({}, "stream", "o").table("x")) == ("shop_orders_1", "o")
    assert quoted('a"b') == '"a""b"'
    check_shapes({"a": shape, "b": TableShape({"x": "INTEGER", "y": "INTEGER"}, "changelog")})
    with pytest.raises(UserError, match="tables a_b and a_b: in SQL these are one name"):
        check_shapes({"a.b": shape, "a-b": shape})
    for columns in ({"x": "DATE", "X": "DATE"}, {"_Offset": "DATE"}):
        with pytest.raises(UserError, match="in SQL these are one name"):
            check_shapes({"t": TableShape(columns, "stream")})
