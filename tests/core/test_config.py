import msgspec
import pytest

from mainstem.core.config import (
    BadSetting,
    check_interval,
    check_type,
    convert,
    named_tables,
    overlay_environment,
    read_toml,
    variable_of,
)


class Room(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    segment_bytes: int = 1024
    name: str = "x"


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log: Room = Room()


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(BadSetting, match=rf"^{tmp_path}: expected a file to read: Is a directory$"):
        read_toml(tmp_path)


@pytest.mark.parametrize("tree", [{}, {"type": "b"}, {"type": ["a"]}, 5])
def test_a_table_of_an_unknown_type_is_told_which_there_are(tree):
    with pytest.raises(BadSetting, match=r'^f: \[sources\.x\]: expected type = "a" or type = "c", found '):
        check_type(tree, ("c", "a"), where="f: [sources.x]")


def test_the_environment_overrides_the_file():
    tree = overlay_environment(
        {"log": {"segment_bytes": 1, "name": "a"}}, {"MAINSTEM_LOG__SEGMENT_BYTES": "2", "PATH": "/bin"}
    )
    assert convert(tree, Tree, where="test") == Tree(Room(segment_bytes=2, name="a"))


def test_a_variable_means_a_name_that_it_cannot_hold():
    """The password of `[sources.Web-Shop]` could not be given in the environment; it was that of another source."""
    tree = {"sources": {"Web-Shop": {"url": "a"}, "shop": {}, "Shop": {}}, "topics": {"shop.orders": {}}}
    variables = {"MAINSTEM_SOURCES__WEB_SHOP__URL": "b", "MAINSTEM_SOURCES__SHOP__URL": "c"}
    variables["MAINSTEM_TOPICS__SHOP_ORDERS__PARTITIONS"] = "2"
    assert overlay_environment(tree, variables) == {
        "sources": {"Web-Shop": {"url": "b"}, "shop": {"url": "c"}, "Shop": {}},
        "topics": {"shop.orders": {"partitions": "2"}},
    }
    two = {"sources": {"web-shop": {}, "Web_Shop": {}}}
    with pytest.raises(BadSetting, match=r"^MAINSTEM_SOURCES__WEB_SHOP__URL: expected .* found web-shop and Web_Shop$"):
        overlay_environment(two, variables)


def test_a_variable_without_a_table_is_no_setting():
    assert overlay_environment({"log": {}}, {"MAINSTEM_CACHE": "/c"}) == {"log": {}}


def test_the_overlay_leaves_its_input_alone():
    tree = {"log": {"segment_bytes": 1}}
    overlay_environment(tree, {"MAINSTEM_LOG__SEGMENT_BYTES": "2"})
    assert tree == {"log": {"segment_bytes": 1}}


def test_a_missing_file_says_what_is_expected(tmp_path):
    with pytest.raises(BadSetting, match="no such file") as caught:
        read_toml(tmp_path / "mainstem.toml")
    assert "project directory" in caught.value.hint


def test_a_file_that_is_not_toml_is_named(tmp_path):
    path = tmp_path / "mainstem.toml"
    path.write_text("[log\n")
    with pytest.raises(BadSetting, match=r"mainstem\.toml: not valid TOML"):
        read_toml(path)


def test_a_variable_is_found_by_its_table():
    environment = {"MAINSTEM_FOO__B": "1", "MAINSTEM_FOO__A": "1", "MAINSTEM_DATA": "x"}
    assert (variable_of("foo", environment), variable_of("data", environment)) == ("MAINSTEM_FOO__A", None)


def test_named_tables_are_tables(tmp_path):
    assert named_tables({"jobs": {"a": {"every": "1 second"}}}, "jobs", where=tmp_path) == {"a": {"every": "1 second"}}
    assert named_tables({}, "jobs", where=tmp_path) == {}
    for wrong in ([{}], 5, {"a": 1}):
        with pytest.raises(BadSetting, match=r"expected tables \[jobs.NAME\]"):
            named_tables({"jobs": wrong}, "jobs", where=tmp_path)


def test_an_interval_is_what_sparks_triggers_take():
    for text in ("2 seconds", "1 second", "0 seconds", "interval 5 minutes", "1 minute 30 seconds", "500 milliseconds"):
        assert check_interval(text) == text
    for text in ("often", "", "2", "seconds", "-1 seconds", "2s"):
        with pytest.raises(ValueError, match="expected a number and a unit"):
            check_interval(text)
