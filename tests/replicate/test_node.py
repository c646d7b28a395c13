"""Nodes on a real log: answers, take-overs, restarts, other logs, and what is stopped in time."""

import asyncio
import contextlib
import random

import pytest
import structlog

import mainstem
from mainstem.client import Connection
from mainstem.client.append import append
from mainstem.client.errors import TopicMismatch
from mainstem.client.topics import delete, end_offsets, ensure_topic
from mainstem.replicate import (
    Broken,
    Diverged,
    Node,
    NotApplied,
    NotPrimary,
    OtherLog,
    OutcomeUnknown,
    PrimaryBackup,
    Refused,
    Request,
    StateMachine,
    Stopped,
    Timing,
    UnknownRequest,
    Unreadable,
)
from mainstem.replicate import node as node_module
from tests.replicate.test_machine import Sums

TIMING = Timing(0.1, 0.5, 0.5)


def state_machine(name="n1", service=Sums, **options):
    return StateMachine(name, service, **({"nodes": 3} | options))


def primary_backup(name="n1", **options):
    return PrimaryBackup(name, Sums, timing=TIMING, **options)


KINDS = {"state-machine": state_machine, "primary-backup": primary_backup}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


async def until(reached, seconds=60):
    async with asyncio.timeout(seconds):
        while not reached():
            await asyncio.sleep(0.01)


async def primary_of(*nodes):
    """The node that takes requests, once there is one."""
    found = []

    def reached():
        found[:] = [node for node in nodes if node.status()["role"] in ("primary", "replica")]
        return found

    await until(reached)
    return found[0]


async def ask(nodes, call):
    """Ask until somebody has an answer, as a client does."""
    async with asyncio.timeout(60):
        while True:
            for node in nodes:
                with contextlib.suppress(NotPrimary, NotApplied, OutcomeUnknown, Stopped):
                    return await call(node)
            await asyncio.sleep(0.02)


async def insist(nodes, operation, request=None):
    return await ask(nodes, lambda node: node.write(operation, request))


async def primary_named_by_a_backup(nodes):
    """Who takes requests, as a backup among them says it once it has read of another one of them."""
    names = {node.replica.node for node in nodes}
    async with asyncio.timeout(60):
        while True:
            for backup in (node for node in nodes if node.status()["role"] == "backup"):
                with contextlib.suppress(NotApplied, OutcomeUnknown):  # elected meanwhile
                    try:
                        await backup.write(["x", 1])
                    except NotPrimary as error:
                        if error.primary in names - {backup.replica.node}:
                            return error.primary
            await asyncio.sleep(0.02)


@kinds
def test_three_nodes_answer_and_come_to_the_same_state(connection, topic, kind):
    async def scenario():
        async with (
            Node(connection, topic, kind("n1")) as first,
            Node(connection, topic, kind("n2")) as second,
            Node(connection, topic, kind("n3")) as third,
        ):
            nodes = (first, second, third)
            await insist(nodes, ["first", 1])  # two may have claimed at once: the first of them is none for long
            node = await primary_of(*nodes)
            answers = await asyncio.gather(*(node.write(["x", 1]) for _ in range(100)))
            assert [each.value for each in answers] == list(range(1, 101))
            with pytest.raises(Refused, match="other than 0"):
                await node.write(["x", 0])
            assert (await node.read("x")).value == 100
            with pytest.raises(Refused, match="expected a name"):
                await node.read("")
            client = await node.open_client()
            twice = [await node.write(["x", 5], Request(client, 1)) for _ in range(2)]
            assert [each.value for each in twice] == [105, 105]
            with pytest.raises(UnknownRequest, match="not known"):
                await node.write(["x", 5], Request(client + 1_000_000, 1))
            basis = (await node.read("x")).basis
            for each in nodes:
                assert (await each.read("x", local=True, basis=basis)).value == 105
            assert len({each.status()["state"] for each in nodes}) == 1

    asyncio.run(scenario())


@kinds
def test_a_node_that_starts_anew_has_what_was_answered(connection, topic, kind, tmp_path):
    """From the log alone, from a checkpoint and what came after it, and from a checkpoint alone."""

    async def scenario():
        async with Node(connection, topic, kind(), directory=tmp_path, checkpoint_every=10) as node:
            for number in range(25):
                await insist([node], ["x", number + 1])
        for directory in (None, tmp_path):
            async with Node(connection, topic, kind(), directory=directory) as node:
                assert (await node.read("x", local=True)).value == 325
                assert (await insist([node], ["y", 1])).value == 1 + (directory is not None)

    asyncio.run(scenario())


def test_a_node_without_its_primary_is_elected(connection, topic):
    async def scenario():
        async with contextlib.AsyncExitStack() as stack:
            nodes = [Node(connection, topic, primary_backup(f"n{number}")) for number in (1, 2, 3)]
            for node in nodes:
                await stack.enter_async_context(node)
            client = await ask(nodes, Node.open_client)
            assert (await insist(nodes, ["x", 5], Request(client, 1))).value == 5
            primary = await primary_of(*nodes)
            await primary.close()
            others = [node for node in nodes if node is not primary]
            assert (await insist(others, ["x", 5], Request(client, 1))).value == 5
            assert (await insist(others, ["x", 1], Request(client, 2))).value == 6
            assert await primary_named_by_a_backup(others)

    asyncio.run(scenario())


@kinds
def test_a_directory_that_cannot_be_written_stops_nobody(connection, topic, kind, tmp_path):
    async def scenario():
        node = Node(connection, topic, kind(), directory=tmp_path / "a file" / "n1", checkpoint_every=2)
        async with node:
            for _ in range(5):
                await insist([node], ["x", 1])
            assert (await node.read("x")).value == 5
        assert node.problem is None
        await node.wait_stopped()

    (tmp_path / "a file").write_bytes(b"")
    with structlog.testing.capture_logs() as logs:
        asyncio.run(scenario())
    found = [each for each in logs if each["event"] == "checkpoint_not_written"]
    assert len(found) >= 2
    assert found[0]["directory"] == str(tmp_path / "a file" / "n1")


def test_a_local_read_may_be_old_and_one_with_a_basis_waits(connection, topic):
    async def scenario():
        async with Node(connection, topic, state_machine(), timeout_seconds=0.2) as node:
            await node.write(["x", 1])
            with pytest.raises(OutcomeUnknown, match="expected offset 1000 within"):
                await node.read("x", local=True, basis=1000)
            assert not node._bases  # nothing is left of who has gone
            waiting = asyncio.gather(node.read("x", local=True, basis=2), node.write(["x", 1]))
            assert [each.value for each in await waiting] == [2, 2]

    asyncio.run(scenario())


def test_who_gets_no_answer_is_told_how_far_it_is_read(topic):
    async def scenario():
        with mainstem.embedded() as log:
            node = Node(Connection(log.bootstrap), topic, state_machine(), timeout_seconds=0.5)
            await node.open()
            await node.write(["x", 1])
        with pytest.raises(OutcomeUnknown, match=f"{topic}-0: not read back in 0.5 s; read up to offset 1"):
            await node.write(["x", 1])
        await node.close()
        with pytest.raises(Stopped, match="closed"):
            await node.write(["x", 1])

    asyncio.run(scenario())


@kinds
def test_a_log_that_comes_back_is_gone_on_with(topic, kind, tmp_path):
    from mainstem.broker.config import BrokerConfig
    from tests.support.ports import free_port

    broker = BrokerConfig(port=free_port())

    async def scenario():
        with mainstem.embedded(tmp_path, broker=broker) as log:
            node = Node(Connection(log.bootstrap), topic, kind())
            await node.open()
            await insist([node], ["x", 1])
        with mainstem.embedded(tmp_path, broker=broker):
            assert (await insist([node], ["y", 1])).value == 1
            assert (await node.read("x", local=True)).value == 1
            await node.close()

    asyncio.run(scenario())


def test_whoever_closes_leaves_nobody_waiting(connection, topic):
    async def scenario():
        node = Node(connection, topic, state_machine())
        await node.open()
        asked = asyncio.gather(
            node.read("x", local=True, basis=1000), node.read("x", basis=1000), return_exceptions=True
        )
        await asyncio.sleep(0)  # now they wait
        node._appender.append = lambda _: None
        sent = asyncio.gather(node.write(["x", 1]), return_exceptions=True)
        await asyncio.sleep(0)
        await node.close()
        assert [type(each) for each in (*await asked, *await sent)] == [Stopped, Stopped, OutcomeUnknown]

    asyncio.run(scenario())


def test_a_record_of_somebody_else_stops_the_node(connection, topic):
    async def scenario():
        async with Node(connection, topic, state_machine()) as node:
            append(connection, topic, [(None, b"what?")])
            with pytest.raises(Unreadable, match="offset 0"):
                await asyncio.wait_for(node.wait_stopped(), 60)
            with pytest.raises(Stopped, match="offset 0"):
                await node.read("x", local=True)
            assert "offset 0" in node.status()["problem"]
        with pytest.raises(Unreadable):
            await Node(connection, topic, state_machine()).open()

    asyncio.run(scenario())


def test_a_service_that_fails_halfway_stops_its_node(connection, topic):
    class Fails(Sums):
        def assign(self, changes):
            raise KeyError("x")

    async def scenario():
        async with Node(connection, topic, state_machine(service=Fails)) as node:
            with pytest.raises(OutcomeUnknown):
                await node.write(["x", 1])
            with pytest.raises(Broken, match="offset 0: the service failed: KeyError: 'x'"):
                await asyncio.wait_for(node.wait_stopped(), 60)

    asyncio.run(scenario())


def test_a_replica_that_diverges_stops_at_the_operation_and_the_others_go_on(connection, topic, tmp_path):
    draw = random.Random(7)

    class Drifts(Sums):
        def execute(self, operation):
            total, changes = super().execute(operation)
            return (total, changes) if total < 13 else (total + draw.random(), changes)

    async def scenario():
        async with (
            Node(connection, topic, state_machine("n1", digest_every=10)) as first,
            Node(connection, topic, state_machine("n2", digest_every=10)),
            Node(connection, topic, state_machine("n3", Drifts, digest_every=10), directory=tmp_path) as third,
        ):
            offsets = [(await first.write(["x", 1])).basis - 1 for _ in range(20)]
            with pytest.raises(Diverged) as found:
                await asyncio.wait_for(third.wait_stopped(), 60)
            assert found.value.offset == offsets[12]
            assert (await first.write(["x", 1])).value == 21
        assert not list(tmp_path.iterdir())  # the state is not to be gone on from

    asyncio.run(scenario())


@kinds
def test_another_log_is_refused(topic, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(node_module, "_WATCH_SECONDS", 0.05)

    async def scenario():
        with mainstem.embedded() as log, mainstem.embedded() as other:
            connection = Connection(log.bootstrap)
            async with Node(connection, topic, kind(), directory=tmp_path) as node:
                await insist([node], ["x", 1])
            with pytest.raises(OtherLog, match="expected log"):
                await Node(Connection(other.bootstrap), topic, kind(), directory=tmp_path).open()
            another = StateMachine("n1", Sums, nodes=3) if kind is primary_backup else primary_backup()
            with pytest.raises(OtherLog):
                await Node(connection, topic, another, directory=tmp_path).open()
            async with Node(connection, topic, kind()) as node:
                delete(connection, [topic])
                ensure_topic(connection, topic, 1)
                with pytest.raises(mainstem.core.MainstemError):
                    await asyncio.wait_for(node.wait_stopped(), 60)

    asyncio.run(scenario())


def test_a_log_that_has_lost_its_end_is_refused(connection, topic, tmp_path, monkeypatch):
    async def scenario():
        async with Node(connection, topic, state_machine(), directory=tmp_path) as node:
            await node.write(["x", 1])
        monkeypatch.setattr(node_module, "end_offsets", lambda *_, **__: {0: 0})
        with pytest.raises(OtherLog, match="expected offsets up to 1 at least, found 0"):
            await Node(connection, topic, state_machine(), directory=tmp_path).open()

    asyncio.run(scenario())


def test_a_topic_that_would_lose_records_is_refused(connection, topic):
    ensure_topic(connection, topic, 1, {"cleanup.policy": "compact"})
    with pytest.raises(TopicMismatch, match=r"cleanup\.policy"):
        asyncio.run(Node(connection, topic, state_machine()).open())


def test_a_node_that_hears_its_primary_appends_nothing(connection, topic):
    async def scenario():
        async with (
            Node(connection, topic, PrimaryBackup("n1", Sums, timing=Timing(1000.0, 1000.0, 0.0))) as first,
            Node(connection, topic, PrimaryBackup("n2", Sums, timing=Timing(1000.0, 1000.0, 1000.0))) as second,
        ):
            await primary_of(first)
            await first.write(["x", 1])
            await second.read("x", local=True, basis=2)
            end = end_offsets(connection, topic)[0]
            assert second.status()["primary"] == "n1"
            assert end <= 4  # a claim, at most a beat, and the result

    asyncio.run(scenario())
