from types import SimpleNamespace

from mainstem.dash.state import Edge
from mainstem.serve.config import ServeConfig, ViewConfig
from mainstem.standalone.dashboard_views import view_nodes, view_states
from mainstem.standalone.view_lines import ViewLine

CONFIG = ServeConfig({"planes": ViewConfig("key-value", "fleet.planes"), "all": ViewConfig("sql", ["a", "b"])})


def told(position, *, ready=True, state="running", why=""):
    return {"kind": "", "ready": ready, "position": position, "state": state, "why": why}


def seen(**nodes):
    looks = SimpleNamespace(configs=dict.fromkeys(nodes, CONFIG), look=lambda: nodes)
    lines = [ViewLine("planes", "one", "key-value", {}, {}, {}, 10, 130, 0)]
    return view_states(looks, {"fleet.planes": {0: 100, 1: 50}, "a": {0: 7}, "b": {0: 3}, "a.v2": {0: 9}}, lines)


def test_how_far_a_view_is():
    views = seen(one={"planes": told({"fleet.planes": {"0": 90, "1": 50}}), "all": told({}, ready=False, state="idle")})
    planes, both = views
    assert (planes.state, planes.count, planes.lag, planes.reads) == ("running", 140, 10, ["fleet.planes"])
    assert planes.rows == 130
    assert (both.state, both.count, both.lag, both.topics) == ("idle", 0, None, ["a", "b"])


def test_a_view_of_several_nodes_is_one_card_and_the_slowest_counts():
    fast = {"planes": told({"fleet.planes": {"0": 100, "1": 50}}), "all": told({"a.v2": {"0": 9}, "b": {"0": 3}})}
    slow = {"planes": told({"fleet.planes": {"0": 40, "1": 50}}), "all": told({"a": {"0": 7}, "b": {"0": 3}})}
    nodes, edges = view_nodes(seen(one=fast, two=slow))
    assert [(node.id, node.count, node.lag, node.state, node.detail, node.page) for node in nodes] == [
        ("view:one/planes", 90, 60, "running", "key-value, 2 nodes", "/views/one/planes"),
        ("view:one/all", 10, 0, "running", "sql, 2 nodes", "/views/one/all"),
    ]
    # One node has followed a cutover, the other has not yet.
    assert edges >= {Edge("topic:a", "view:one/all"), Edge("topic:a.v2", "view:one/all")}


def test_a_node_that_does_not_answer_is_told():
    fine = {"planes": told({"fleet.planes": {"0": 1, "1": 1}}, ready=False), "all": told({})}
    views = seen(one=fine, two="no answer: Connection refused")
    (planes, _), edges = view_nodes(views)
    assert (views[0].state, views[2].state) == ("reading", "no answer")
    assert (planes.state, planes.error, planes.lag) == ("0 of 2 run", "two: no answer: Connection refused", None)
    assert Edge("topic:fleet.planes", "view:one/planes") in edges
    assert seen(one={"planes": told({})})[1].state == "no answer"


def test_the_versions_that_a_view_answers_by_and_moves_to():
    moving = {"versions": {"a": "2"}, "why": "it still reads its topics"}
    views = seen(one={"planes": told({}), "all": told({}) | {"versions": {"a": "1"}, "moving": moving}})
    assert (views[1].versions, views[1].moving) == ({"a": "1"}, "moves to version 2 of a: it still reads its topics")
    nodes, _ = view_nodes(views)
    assert nodes[1].detail == views[1].moving
    still = seen(one={"planes": told({}), "all": told({}) | {"versions": {"a": "1"}}})
    assert view_nodes(still)[0][1].detail == "sql, version 1, 1 node"
