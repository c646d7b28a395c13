"""What clients are sent: bounds on what those who do not take it can make us hold."""

import asyncio

from mainstem.broker.answer_memory import PATIENCE_SECONDS, AnswerMemory
from mainstem.broker.config import BrokerConfig
from mainstem.core import ManualClock, SystemClock
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code
from tests.support.broker import Client, frame, running, until, who_takes_little


def unsent(broker):
    """What the broker holds of answers."""
    return sum(
        c._transport.get_write_buffer_size() + sum(len(chunk) for each in c._unanswered for chunk in each.chunks)
        for c in broker.connections
    )


def test_clients_that_take_nothing_of_a_fetch_share_one_budget_and_are_cut_off_where_it_is_wanted(tmp_path):
    """Each kept up to 57 MB, for as long as it liked."""
    clock, limit, batch, slow_ones = ManualClock(), 8 << 20, 900_000, 6

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit // 4)
        async with running(directory, clock, config) as broker:
            log = (await broker.topics.create("t", 1, {})).logs[0]
            for _ in range(24):
                await log.append(build_batch([Record(0, 1, None, b"x" * batch)]))
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50_000_000}]
            topics = [{"topic": "t", "partitions": wanted}]
            fetch = {"max_wait": 0, "min_bytes": 1, "max_bytes": 50_000_000, "topics": topics}
            slow = [await who_takes_little(broker) for _ in range(slow_ones)]
            for client in slow:
                await asyncio.get_running_loop().sock_sendall(client, frame(1, 4, 1, fetch))
            for client in slow:  # one byte says that the answer is made
                await asyncio.get_running_loop().sock_recv(client, 1)
            assert any(c._outbox.is_stuck for c in broker.connections)
            assert unsent(broker) <= limit + (slow_ones + 1) * (batch + 1000)
            client = await Client.connect(broker)

            async def fetched():
                answer = await client.call(1, 4, **fetch)
                return len(answer.responses[0].partitions[0].records)

            assert batch <= await fetched() < limit, "one batch goes out whatever is held"
            for _ in range(2):  # the sockets may have taken some more before the first look
                clock.advance_ms(int(PATIENCE_SECONDS * 1000))
                await fetched()
            await until(lambda: broker.fetched_memory.held == 0, "those who took nothing are cut off")
            assert await fetched() > limit - 2 * batch
            for each in slow:
                each.close()
            client.close()

    asyncio.run(check(tmp_path))


def test_no_further_request_is_started_while_there_is_much_to_send(tmp_path):
    """A few bytes ask for all groups; 64 such requests were answered before anything was sent."""

    async def check(directory) -> None:
        async with running(directory, ManualClock(), BrokerConfig(port=0)) as broker:
            for number in range(10_000):
                broker.groups.group(f"group-{number}")
            client = await who_takes_little(broker)
            await asyncio.get_running_loop().sock_sendall(client, frame(16, 0, 1, {}) * 40)
            await until(lambda: any(c._outbox.is_stuck for c in broker.connections), "it is stuck")
            assert unsent(broker) <= 2 << 20
            client.close()

    asyncio.run(check(tmp_path))


def test_answers_that_nobody_knows_the_size_of_before_are_held_as_far_as_there_is_room(tmp_path):
    """Each connection was given its own, until who took nothing was cut off after half a minute."""
    limit, size = 40_000_000, 9_000_000
    join = {"group_id": "g", "session_timeout": 600_000, "rebalance_timeout": 600_000, "protocol_type": "x"}
    describe = frame(15, 0, 1, {"groups": ["g"]})

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit // 2, group_initial_rebalance_delay_ms=0)
        async with running(directory, SystemClock(), config) as broker:
            client = Client(*await asyncio.open_connection(broker.host, broker.port, limit=2 * size))
            protocols = [{"name": "p", "metadata": bytes(size)}]
            member = await client.call(11, 3, member_id="", protocols=protocols, **join)
            joined = {"group_id": "g", "generation_id": member.generation_id, "member_id": member.member_id}
            await client.call(14, 2, **joined, assignments=[{"member_id": member.member_id, "assignment": b""}])
            slow = [await who_takes_little(broker) for _ in range(12)]
            for each in slow:
                await asyncio.get_running_loop().sock_sendall(each, describe)
            await until(lambda: broker.unasked_memory.held >= limit, "they do not take it")
            assert (await client.call(12, 3, **joined)).error_code == Code.none
            assert broker.unasked_memory.held >= limit, "what has a small answer did not wait"
            elsewhere = Client(
                *await asyncio.open_connection(broker.host, broker.port, limit=2 * size, local_addr=("127.0.0.2", 0))
            )
            for each in (elsewhere, client):  # the latter is of their address, and waits
                described = await each.call(15, 0, groups=["g"])
                assert len(described.groups[0].members[0].member_metadata) == size
                assert broker.unasked_memory.held <= 2 * limit + size
            assert len(broker.connections) < 2 + len(slow), "who takes nothing is cut off"
            elsewhere.close()
            for each in (client, *slow):
                each.close()

    asyncio.run(check(tmp_path))


def test_what_is_answered_later_is_made_in_several_turns_of_the_loop_too(tmp_path, monkeypatch):
    """Members that join are answered together: 113 of 122 clients were cut off, after 1.8 GB had been made at once."""
    size, made, hold = 3_000_000, [], AnswerMemory.hold

    def counted(self, taker, size):
        hold(self, taker, size)
        made.append(self._made)

    monkeypatch.setattr(AnswerMemory, "hold", counted)
    join = {"group_id": "g", "session_timeout": 600_000, "rebalance_timeout": 600_000, "protocol_type": "x"}

    async def check(directory) -> None:
        config = BrokerConfig(port=0, group_initial_rebalance_delay_ms=0)
        async with running(directory, SystemClock(), config) as broker:
            leader, member = [
                Client(*await asyncio.open_connection(broker.host, broker.port, limit=2 * size)) for _ in range(2)
            ]
            small = [{"name": "p", "metadata": b"a"}]
            first = await leader.call(11, 3, member_id="", protocols=small, **join)
            member.send(11, 3, member_id="", protocols=[{"name": "p", "metadata": bytes(size)}], **join)
            await until(lambda: len(broker.groups.groups["g"].members) == 2, "the second one joins")
            await leader.call(11, 3, member_id=first.member_id, protocols=small, **join)
            again = frame(11, 3, 1, {"member_id": first.member_id, "protocols": small, **join})
            made.clear()
            others = [await who_takes_little(broker) for _ in range(16)]
            for each in others:
                await asyncio.get_running_loop().sock_sendall(each, again)
            await until(lambda: len(made) == len(others), "all are answered")
            assert max(made) < broker.unasked_memory.limit / 8 + 2 * size
            for each in (leader, member, *others):
                each.close()

    asyncio.run(check(tmp_path))


def test_who_is_answered_behind_an_answer_that_is_not_taken_goes_on_when_there_is_room(tmp_path):
    """Nobody told it, when it had found that it was to take its answers first."""
    join = {"group_id": "g", "session_timeout": 300_000, "rebalance_timeout": 300_000, "protocol_type": "x"}

    async def check(directory) -> None:
        config = BrokerConfig(port=0, group_initial_rebalance_delay_ms=3_000_000)
        async with running(directory, ManualClock(), config) as broker:
            for number in range(1_000):
                broker.groups.group(f"group-{number}")
            client = await Client.connect(broker)
            client.send(11, 3, member_id="", protocols=[{"name": "p", "metadata": b""}], **join)
            client.send(16, 0)
            await until(lambda: broker.unasked_memory.held, "the second answer is made")
            broker.unasked_memory.take(broker.unasked_memory.limit)
            client.send(18, 0)
            (connection,) = broker.connections
            await until(lambda: connection._arrivals.requests, "it is to take that first")
            broker.unasked_memory.give(broker.unasked_memory.limit)
            await until(lambda: not connection._arrivals.requests, "it is told that it need not")
            client.close()

    asyncio.run(check(tmp_path))


def test_answers_behind_a_request_that_waits_make_room_for_others(tmp_path):
    """Their client did not even have to keep from reading: two of them had all the room for half an hour."""
    clock, limit, batch = ManualClock(), 4 << 20, 900_000

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit // 4, group_initial_rebalance_delay_ms=3_000_000)
        async with running(directory, clock, config) as broker:
            log = (await broker.topics.create("t", 1, {})).logs[0]
            for _ in range(5):
                await log.append(build_batch([Record(0, 1, None, b"x" * batch)]))
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50_000_000}]
            fetch = {"max_bytes": 50_000_000, "topics": [{"topic": "t", "partitions": wanted}]}
            join = {"group_id": "g", "session_timeout": 300_000, "rebalance_timeout": 300_000, "protocol_type": "x"}
            behind = await Client.connect(broker)
            behind.send(11, 3, **join, protocols=[{"name": "p", "metadata": b""}])
            behind.send(1, 4, max_wait=0, min_bytes=1, **fetch)
            await until(lambda: broker.fetched_memory.held >= limit - batch, "its answer is made")
            client = await Client.connect(broker)

            async def fetched():
                answer = await client.call(1, 4, max_wait=0, min_bytes=1, **fetch)
                return len(answer.responses[0].partitions[0].records)

            assert await fetched() < 2 * batch
            for _ in range(2):
                clock.advance_ms(int(PATIENCE_SECONDS * 1000))
                await fetched()
            await until(lambda: broker.fetched_memory.held == 0, "it is cut off")
            assert await fetched() > limit - 2 * batch
            for each in (behind, client):
                each.close()

    asyncio.run(check(tmp_path))


def test_a_client_that_takes_no_answers_is_idle_in_the_end(tmp_path):
    """It was closed once it had taken what it did not take: never."""
    clock = ManualClock()

    async def check(directory) -> None:
        async with running(directory, clock, BrokerConfig(port=0)) as broker:
            for number in range(30_000):
                broker.groups.group(f"group-{number}")
            client = await who_takes_little(broker)
            await asyncio.get_running_loop().sock_sendall(client, frame(16, 0, 1, {}) * 20)
            await until(lambda: any(c._outbox.is_stuck for c in broker.connections), "it is stuck")
            assert broker.unasked_memory.held
            clock.advance_ms(600_000)
            broker.close_idle_connections()
            await until(lambda: not broker.connections, "it is gone")
            assert broker.unasked_memory.held == 0
            client.close()

    asyncio.run(check(tmp_path))
