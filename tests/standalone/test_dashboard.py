import msgspec
import pytest

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.catalog import TopicEntry, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.client.writer import TransactionalWriter
from mainstem.core import SystemClock
from mainstem.core.locks import DirectoryLock
from mainstem.core.task import TaskState
from mainstem.dash.state import Edge
from mainstem.standalone.dashboard import dashboard_state
from mainstem.standalone.state import UpState, save
from mainstem.standalone.supervisor import ChildState
from mainstem.standalone.tasks import TasksWriter


@pytest.fixture
def connection():
    with embedded() as log:
        yield Connection(log.bootstrap)


def test_a_log_without_anything_is_an_empty_path(connection, tmp_path):
    state = dashboard_state(tmp_path, connection, "shop")
    assert (state.nodes, state.edges, state.jobs, state.project) == ([], [], [], "shop")


def test_who_writes_and_reads_what(connection, tmp_path):
    ensure_internal_topics(connection)
    for topic in ("orders", "out", "alone"):
        ensure_topic(connection, topic, 2)
    writer = TransactionalWriter(connection, "shop")
    writer.open()
    writer.begin()
    writer.send("orders", None, b"k", b"v")
    writer.commit({"state": "streaming", "lsn": 0x16B3748})
    writer.close()
    about = {"code": "c", "output": "out", "inputs": {"o": "orders"}, "determinism": "exact", "reason": ""}
    write_catalog(
        connection,
        {
            "topic:orders": TopicEntry(producer="source:shop"),
            "job:j": {"versions": {"1": about}, "current": "1"},
            "sink:lake": {"pattern": "out|gone"},
        },
    )
    append(connection, "alone", [(None, b"v")] * 3)
    with DirectoryLock(tmp_path):
        child = ChildState("connect", "running", 4711, ready_line="shop")
        save(tmp_path, UpState(1, str(tmp_path), connection.bootstrap, "http://127.0.0.1:1", 0.0, [child]))
        failed = TaskState("sink lake", "failed", 1, "no disk", since_ms=SystemClock().now_ms())
        TasksWriter(tmp_path, 4711).save([TaskState("source late"), failed])
        state = dashboard_state(tmp_path, connection, "shop")
    nodes = {node.id: node for node in state.nodes}
    assert nodes.keys() == {
        "source:shop", "source:late", "topic:orders", "topic:out", "topic:alone", "job:j@1", "sink:lake",
    }  # fmt: skip
    assert set(state.edges) == {
        Edge("source:shop", "topic:orders"),
        Edge("topic:orders", "job:j@1"),
        Edge("job:j@1", "topic:out"),
        Edge("topic:out", "sink:lake"),
    }
    assert nodes["source:shop"].position == "lsn 0/16B3748"
    assert (nodes["topic:alone"].count, nodes["topic:alone"].detail) == (3, "2 partitions")
    assert (nodes["sink:lake"].state, nodes["sink:lake"].error) == ("failed", "no disk")
    assert [node.id for node in sorted(state.nodes, key=lambda node: node.layer)][-1] == "sink:lake"
    assert msgspec.structs.asdict(state.processes[0])["state"] == "running"
    assert state.jobs[0].inputs == ["orders"]
