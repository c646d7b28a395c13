from mainstem.dash.graph import layered
from mainstem.dash.state import Edge, Node


def layers(names, edges):
    nodes = [Node(name, name.partition(":")[0], name) for name in names]
    return {node.id: node.layer for node in layered(nodes, [Edge(*edge) for edge in edges])}


def test_each_stands_right_of_all_that_it_reads():
    edges = [
        ("source:s", "topic:a"),
        ("topic:a", "job:j"),
        ("topic:b", "job:k"),
        ("job:j", "topic:b"),
        ("topic:a", "job:k"),
    ]
    found = layers(["job:k", "topic:a", "topic:b", "job:j", "source:s"], edges)
    assert found == {"source:s": 0, "topic:a": 1, "job:j": 2, "topic:b": 3, "job:k": 4}


def test_a_topic_that_nobody_writes_stands_with_those_of_sources():
    assert layers(["topic:a", "sink:s"], [("topic:a", "sink:s")]) == {"topic:a": 1, "sink:s": 2}


def test_a_circle_ends():
    found = layers(["topic:a", "job:j", "topic:b"], [("topic:a", "job:j"), ("job:j", "topic:b"), ("topic:b", "job:j")])
    assert found["topic:a"] < found["job:j"]


def test_an_edge_of_what_is_not_there_is_left_out():
    assert layers(["topic:a"], [("source:gone", "topic:a")]) == {"topic:a": 1}
