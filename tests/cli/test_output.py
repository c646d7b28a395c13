import msgspec

from mainstem.cli.output import printable, to_json, to_table


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
    assert to_json({"orders": {0: 5}}) == '{\n  "orders": {\n    "0": 5\n  }\n}'


def test_what_a_terminal_would_obey_is_shown_and_all_else_is_as_it_was():
    text = "\x1b[31m\r\n\x7f\x9b\u2028\u202e é 語 👩\u200d💻 \\n"
    assert printable(text) == r"\u001b[31m\r\n\u007f\u009b\u2028\u202e" + " é 語 👩\u200d💻 \\n"
    document = msgspec.json.encode(text).decode()
    assert msgspec.json.decode(printable(document)) == text
