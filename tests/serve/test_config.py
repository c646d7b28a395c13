import pytest

from mainstem.core.config import BadSetting
from mainstem.serve.config import convert_nodes, node_names

PLANES = {"kind": "key-value", "topics": "fleet.planes", "versions": True}


def test_nodes_have_the_views_and_an_address_each():
    table = {"listen": ["127.0.0.1:9611", "127.0.0.1:9612"], "views": {"planes": PLANES}}
    config = convert_nodes({"answers": table}, where="x")["answers"]
    assert config.views["planes"].names == ("fleet.planes",)
    assert node_names("answers", config) == ["answers-1", "answers-2"]
    text = convert_nodes({"a": {"listen": "127.0.0.1:0, 127.0.0.1:0", "views": {}}}, where="x")["a"]
    assert text.addresses == ("127.0.0.1:0", "127.0.0.1:0")  # as a variable of the environment has it
    single = convert_nodes({"one": {"views": {"planes": PLANES}}}, where="x")["one"]
    assert node_names("one", single) == ["one"]


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ({"a": {"views": {"v": {"kind": "kv", "topics": "t"}}}}, "expected one of key-value, search, sql, found 'kv'"),
        ({"a": {"views": {"v": {"kind": "sql"}}}}, "missing required field `topics`"),
        ({"a": {"views": {"v": {"kind": "sql", "topics": []}}}}, "expected the topics"),
        ({"a": {"views": {"v": {"kind": "sql", "topics": ["t", "t"]}}}}, "expected each once"),
        ({"a": {"views": {"v": {"kind": "key-value", "topics": ["t", "u"]}}}}, "a key-value view is of one topic"),
        ({"a": {"views": {"v": {"kind": "search", "topics": "t", "versions": True}}}}, "are for key-value views"),
        ({"a": {"views": {"v": {"kind": "sql", "topics": "t", "colour": 1}}}}, "unknown field `colour`"),
        ({"a": {"views": {"v/w": {"kind": "sql", "topics": "t"}}}}, "expected letters"),
        ({"a/b": {"views": {}}}, "expected letters"),
        ({"a": {"views": {}, "listen": "9610"}}, "listen"),
        ({"a": {"views": {}, "listen": []}}, "expected an address"),
        ({"a": {"views": {}}, "b": {"views": {}}}, "127.0.0.1:9610 twice"),
        ({"a": {"views": {}, "listen": ["127.0.0.1:1", "127.0.0.1:1"]}}, "127.0.0.1:1 twice"),
    ],
)
def test_what_is_wrong_is_told_with_its_table(nodes, told):
    with pytest.raises(BadSetting, match=r"\[serve\.") as found:
        convert_nodes(nodes, where="mainstem.toml")
    assert told in str(found.value)
