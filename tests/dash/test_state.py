import json

from mainstem.dash.state import Edge, Node, State


def test_it_is_one_json_document():
    state = State(5, "shop", [Node("topic:a", "topic", "a\n</script>", 3)], [Edge("source:s", "topic:a")])
    encoded = state.encoded()
    assert b"\n" not in encoded  # an event's data is a line
    found = json.loads(encoded)
    assert found["nodes"][0]["name"] == "a\n</script>"
    assert found["nodes"][0]["rate"] is None
