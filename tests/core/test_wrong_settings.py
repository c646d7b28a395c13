import difflib
from typing import Literal

import msgspec
import pytest

from mainstem.core.config import BadSetting, convert
from mainstem.core.wrong_settings import nearest, suggestion


class Room(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    segment_bytes: int = 1024
    name: str = "x"


class Door(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    colour: Literal["", "red", "dark green"] = "red"
    marks: tuple[Literal["a", "b"], ...] = ()
    rooms: dict[str, Room] = {}


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log: Room = Room()
    doors: dict[str, Door] = {}


def test_an_unknown_setting_is_named_with_its_file():
    with pytest.raises(BadSetting, match=r"mainstem\.toml: log: Object contains unknown field `segmnt_bytes`"):
        convert({"log": {"segmnt_bytes": 1}}, Tree, where="mainstem.toml")


def test_a_wrong_type_is_named_with_its_place():
    with pytest.raises(BadSetting, match=r"^mainstem.toml: log.segment_bytes: expected `int`, found 'many'$"):
        convert({"log": {"segment_bytes": "many"}}, Tree, where="mainstem.toml")
    with pytest.raises(BadSetting, match=r"^mainstem.toml: log.name: expected `str`, found `int`$"):
        convert({"log": {"name": 5}}, Tree, where="mainstem.toml")  # it may be a password


@pytest.mark.parametrize(
    ("tree", "hint"),
    [
        ({"log": {"segmnt_bytes": 1}}, "did you mean segment_bytes?"),
        ({"log": {"zzz": 1}}, "expected is one of name, segment_bytes"),
        ({"log": {"segment_bytes": "many"}}, "its default is 1024"),
        ({"log": 5}, ""),
    ],
)
def test_a_wrong_setting_comes_with_what_to_do(tree, hint):
    """It named a page that is in no wheel."""
    with pytest.raises(BadSetting) as caught:
        convert(tree, Tree, where="mainstem.toml")
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("doors", "message", "hint"),
    [
        ({"x": {"colour": "dark gren"}}, "x.colour: expected one of red, dark green, found 'dark gren'", "dark green?"),
        ({"x": {"colour": "5"}}, "x.colour: expected one of red, dark green, found '5'", "give one of them"),
        ({"x": {"marks": ["a", "c"]}}, "x.marks[1]: expected one of a, b, found 'c'", "give one of them"),
        (
            {"x": {"colour": "blue"}, "y": {"marks": ["b", "c"]}},
            "x.colour: expected one of red, dark green, found 'blue'",
            "",
        ),
        ({"x": {}, "y.z": {"color": "red"}}, "y.z: Object contains unknown field `color`", "did you mean colour?"),
        ({"x": {}, "y": {"rooms": {"a": {}, "b": {"name": 5}}}}, "y.rooms.b.name: expected `str`, found `int`", '"x"'),
        ({"x": {}, "y": {"rooms": {"a": {"segment_bytes": "m"}}}}, "y.rooms.a.segment_bytes: expected `int`", "1024"),
        ({"x": {}, "y": 5}, "y: expected a table of settings, found `int`", ""),
        ([], "doors: expected a table of settings, found `array`", ""),
    ],
)
def test_a_wrong_setting_of_one_of_many_tables_is_named_with_what_there_is(doors, message, hint):
    """It said `doors[...].colour: Invalid enum value`."""
    with pytest.raises(BadSetting) as caught:
        convert({"doors": doors}, Tree, where="mainstem.toml")
    assert message in str(caught.value)
    assert caught.value.hint.endswith(hint)


def test_what_is_no_table_is_told():
    with pytest.raises(BadSetting, match=r"^broker: expected a table of settings, found `str`$"):
        convert("x", Tree, where="broker")


def test_the_nearest_name_is_suggested():
    known = ("segment_bytes", "name")
    assert (nearest("segmnt_bytes", known), nearest("zzz", known)) == ("segment_bytes", "")
    assert suggestion("zzz", known) == "expected is one of name, segment_bytes"
    assert suggestion("zzz", known, "see there") == "see there"
    assert suggestion("zzz", [f"setting_{number:02}" for number in range(42)]).endswith(", setting_39 and 2 more")


def test_the_nearest_name_is_looked_for_once_however_often_the_mistake_is_made(monkeypatch):
    """A hundred thousand topics with the same mistake stopped the log for minutes."""
    looked_for = []
    matches = difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", lambda *asked: looked_for.append(asked) or matches(*asked))
    known = ["retention_ms", "segment_ms"]
    assert {suggestion("retenton_ms", known) for _ in range(100)} == {"did you mean retention_ms?"}
    assert len(looked_for) == 1
