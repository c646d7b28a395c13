import msgspec

from mainstem.cli.output import to_json, to_table


class Line(msgspec.Struct):
    b: int
    a: str


def test_numbers_stand_right_text_left_and_nothing_trails():
    table = to_table(["name", "count", "ok"], [("a", 1, True), ("bcdef", 23456, False), ("", 3, None)])
    assert table.splitlines() == ["name    count  ok", "a           1  yes", "bcdef  23,456  no", "            3  -"]


def test_an_empty_table_is_its_heading():
    assert to_table(["name", "count"], []) == "name  count"


def test_json_has_stable_fields():
    assert to_json([Line(1, "x")]) == '[\n  {\n    "a": "x",\n    "b": 1\n  }\n]'
