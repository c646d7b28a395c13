from openapi_spec_validator import validate

from mainstem.serve.build import Build
from mainstem.serve.node import Node
from mainstem.serve.openapi import document
from mainstem.serve.targets import Target


def test_the_document_is_one_before_and_after_columns_are_known(fleet, tmp_path):
    node = Node("n", fleet.config(), fleet.connection, tmp_path)
    validate(document(node))
    for view in node.views.values():
        types = {"a": "VARCHAR", "b": "DECIMAL(10,2)", "c": "STRUCT(x INTEGER)", "d": "TIMESTAMP WITH TIME ZONE"}
        made_of = Target({name: name for name in view.config.names})
        view.current = Build(view.name, view.config, view.name, made_of)
        view.current.columns = dict.fromkeys(view.config.names, types)
    found = document(node)
    validate(found)
    row = found["paths"]["/views/planes/row"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert row["properties"]["row"]["properties"] == {
        "a": {"type": ["string", "null"]},
        "b": {"type": ["string", "null"]},
        "c": {},
        "d": {"type": ["string", "null"], "format": "date-time"},
    }
    assert {"/health", "/views"} <= found["paths"].keys()
    for path, (operation,) in ((path, each.values()) for path, each in found["paths"].items()):
        assert (path in ("/health", "/views")) == ("429" not in operation["responses"])
