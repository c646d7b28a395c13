from types import SimpleNamespace

from mainstem.dash.state import Edge
from mainstem.serve.config import ServeConfig, ViewConfig
from mainstem.standalone.dashboard_views import view_nodes, view_states

CONFIG = ServeConfig({"planes": ViewConfig("key-value", "fleet.planes"), "all": ViewConfig("sql", ["a", "b"])})


def told(position, *, ready=True, state="running", why=""):
    return {"kind": "", "ready": ready, "position": position, "state": state, "why": why}


def seen(**nodes):
    looks = SimpleNamespace(configs=dict.fromkeys(nodes, CONFIG), look=lambda: nodes)
    return view_states(looks, {"fleet.planes": {0: 100, 1: 50}, "a": {0: 7}, "b": {0: 3}, "a.v2": {0: 9}})


def test_how_far_a_view_is():
    views = seen(one={"planes": told({"fleet.planes": {"0": 90, "1": 50}}), "all": told({}, ready=False, state="idle")})
    planes, both = views
    assert (planes.state, planes.count, planes.lag, planes.reads) == ("running", 140, 10, ["fleet.planes"])
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
