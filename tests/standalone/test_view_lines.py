from mainstem.client.reports import Report
from mainstem.core.task import TaskState
from mainstem.standalone.view_lines import answering_topics, view_lines

VIEWS = {
    "delays": {
        "kind": "key-value",
        "topics": ["delays"],
        "reads": ["delays", "delays.v2"],
        "current": {"delays": "delays.v2"},
        "versions": {"delays": "2"},
    },
    "names": {"kind": "search", "topics": ["later"], "reads": ["later"], "current": {"later": "later"}},
}
CATALOG = {"node:a": {"views": VIEWS}, "node:old": {"address": "127.0.0.1:1", "views": {"x": {"kind": "sql"}}}}


def test_a_view_is_as_far_as_in_the_topics_that_it_answers_from():
    assert answering_topics(CATALOG) == {"delays.v2", "later"}
    reports = [
        Report(reader="view delays@a", topic=topic, partition=partition, end=end, rows=end - 1, quarantined=1)
        for topic, partition, end in (("delays", 0, 100), ("delays.v2", 0, 7), ("delays.v2", 1, 5))
    ]
    ends = {"delays.v2": {0: 7, 1: 9, 2: 3}, "later": {0: 4}}
    tasks = [TaskState("view delays@a", "running"), TaskState("view names@a", "idle", error="it waits")]
    delays, names, old = view_lines(CATALOG, reports, ends, tasks)
    assert (delays.topics, delays.versions) == ({"delays": "delays.v2"}, {"delays": "2"})
    assert (delays.position, delays.lag) == ({"delays.v2": {0: 7, 1: 5}}, 7)
    assert (delays.rows, delays.quarantined, delays.state) == (10, 2, "running")
    assert (names.position, names.lag, names.state, names.why) == ({}, None, "idle", "it waits")
    assert (old.node, old.topics, old.lag, old.state) == ("old", {}, 0, "")
