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
from mainstem.dash.nodes import Nodes
from mainstem.dash.state import Edge
from mainstem.serve.config import ServeConfig, ViewConfig
from mainstem.standalone.dashboard import dashboard_state
from mainstem.standalone.state import UpState, save
from mainstem.standalone.supervisor import ChildState
from mainstem.standalone.tasks import TasksWriter
from tests.support.splices import write, write_job


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


def running(connection, data, tasks, nodes=None):
    """The dashboard's cards by id, of a project whose one process says this of its tasks."""
    with DirectoryLock(data):
        child = ChildState("connect", "running", 4711, ready_line="shop")
        save(data, UpState(1, str(data), connection.bootstrap, "http://127.0.0.1:1", 0.0, [child]))
        TasksWriter(data, 4711).save(tasks)
        state = dashboard_state(data, connection, "shop", nodes)
    return {node.id: node for node in state.nodes}, state.edges


def test_every_kind_of_task_that_status_shows_has_its_state_on_its_card(connection, tmp_path):
    ensure_internal_topics(connection)
    for name in ("source late", "sink lake", "job totals@2", "splice all", "view planes@web"):
        failed = TaskState(name, "failed", 1, f"{name} is broken", since_ms=SystemClock().now_ms())
        nodes = Nodes({"web": ServeConfig({"planes": ViewConfig("key-value", "planes")})}, dict)
        cards, _ = running(connection, tmp_path, [failed], nodes)
        assert [card.state for card in cards.values() if failed.error in card.error] == ["failed"], name


def test_a_part_of_a_sink_or_a_view_that_has_failed_is_told_on_the_card_of_the_whole(connection, tmp_path):
    ensure_internal_topics(connection)
    tasks = [
        TaskState("sink lake"),
        TaskState("sink lake: table orders", "failed", 1, "no such column"),
        TaskState("sink other: views", "waiting", 1, "disk full"),
        TaskState("view planes@web"),
        TaskState("view planes@web, of planes.v2", "failed", 1, "too large"),
    ]
    nodes = Nodes({"web": ServeConfig({"planes": ViewConfig("key-value", "planes")})}, dict)
    cards, _ = running(connection, tmp_path, tasks, nodes)
    assert {name: (card.state, card.error) for name, card in cards.items() if name.startswith("sink:")} == {
        "sink:lake": ("failed", "table orders: no such column"),
        "sink:other": ("waiting", "views: disk full"),
    }
    assert (cards["view:web/planes"].state, cards["view:web/planes"].error) == (
        "failed", "web: of planes.v2: too large",
    )  # fmt: skip


def test_a_splice_stands_between_the_version_that_it_passes_on_and_its_topic(connection, tmp_path):
    ensure_internal_topics(connection)
    write_job(connection, "job", "changelog")
    write(connection, "job", ("a", 1), ("b", 1), ("c", 1))
    ensure_topic(connection, "job.all", 1)
    writer = TransactionalWriter(connection, "splice:job.all")
    writer.open()
    writer.begin()
    writer.send("job.all", None, b"a", b"1")
    writer.commit({"version": "1", "output": "job", "offsets": {"0": 1}})
    writer.close()
    cards, edges = running(connection, tmp_path, [TaskState("splice job.all", "failed", 1, "no")])
    card = cards["splice:job.all"]
    assert (card.kind, card.name, card.state, card.error) == ("splice", "job.all", "failed", "no")
    assert (card.count, card.lag, card.position) == (1, 2, "version 1")
    assert {edge for edge in edges if card.id in (edge.source, edge.target)} == {
        Edge("topic:job", card.id), Edge(card.id, "topic:job.all"),
    }  # fmt: skip
    assert not [name for name in cards if name.startswith("source:")]
