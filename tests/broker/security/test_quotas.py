"""Quotas: rates, whom they hold for, and clients that are slowed down to them."""

import asyncio
import time

import pytest
from confluent_kafka import Consumer, Producer
from hypothesis import given
from hypothesis import strategies as st

import mainstem
from mainstem.broker.config import BrokerConfig
from mainstem.broker.facts import Facts
from mainstem.broker.security.quotas import (
    CONNECTION,
    CONSUMER,
    MUTATION,
    PRODUCER,
    REQUEST,
    Meter,
    Quotas,
    timed,
)
from mainstem.core import ManualClock, SystemClock
from mainstem.log import LogConfig, LogDirectory
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code, RequestError
from tests.support import kafka_tools
from tests.support.broker import Client, running, until
from tests.support.raw import RawClient


class InMemory:
    """Facts of no log."""

    @staticmethod
    def below(prefix):
        return iter(())

    async def put(self, changes):
        pass


def entity(**names):
    return tuple(sorted((kind.replace("_", "-"), name) for kind, name in names.items()))


def quotas(*entries, clock=None):
    made = Quotas(InMemory(), clock or ManualClock(), lambda _: None)
    asyncio.run(made.change(dict(entries)))
    return made


ANY = None


@pytest.mark.parametrize("level", range(8))
def test_the_most_particular_quota_holds(level):
    """Kafka's order: KIP-55, KIP-546."""
    order = [
        entity(user="u", client_id="c"),
        entity(user="u", client_id=ANY),
        entity(user="u"),
        entity(user=ANY, client_id="c"),
        entity(user=ANY, client_id=ANY),
        entity(user=ANY),
        entity(client_id="c"),
        entity(client_id=ANY),
    ]
    found = quotas(*((each, {PRODUCER: 1000 + number}) for number, each in enumerate(order) if number >= level))
    assert found.limit(PRODUCER, "u", "c").value == 1000 + level
    assert found.limit(CONSUMER, "u", "c") is None
    assert quotas().limit(PRODUCER, "u", "c") is None


def test_a_quota_of_a_user_is_shared_and_one_of_any_client_is_not():
    found = quotas((entity(user="u"), {PRODUCER: 100}), (entity(client_id=ANY), {PRODUCER: 100}))
    assert found.used(PRODUCER, "u", "a", 1000) == 0
    assert found.used(PRODUCER, "u", "b", 500) == 5_000
    assert found.used(PRODUCER, "v", "a", 1000) == 0
    assert found.used(PRODUCER, "w", "b", 1000) == 0
    assert found.used(PRODUCER, "w", "a", 200) == 2_000


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 10_000)), min_size=1, max_size=60), st.integers(100, 5_000))
def test_who_waits_as_long_as_told_is_never_above_the_quota_for_long(steps, limit):
    """Bytes over the whole time, beyond ten seconds' worth, are within the quota."""
    clock = ManualClock()
    meter = Meter(quotas((entity(user="u"), {PRODUCER: limit}), clock=clock), "User:u", "c")
    started, total = clock.monotonic(), 0
    for pause, amount in steps:
        clock.advance_ms(round(pause * 1000))
        total += amount
        clock.advance_ms(meter.used(PRODUCER, amount))
    assert total <= limit * (clock.monotonic() - started + 10) + 1


def test_what_is_over_the_quota_alone_is_had_once_nothing_was_used():
    clock = ManualClock()
    meter = Meter(quotas((entity(client_id="c"), {CONSUMER: 10}), clock=clock), "User:u", "c")
    assert meter.may_use(CONSUMER, 100_000)
    assert not meter.may_use(CONSUMER, 1)
    assert meter.throttle_ms > 0
    clock.advance_ms(10_000_000)
    assert meter.may_use(CONSUMER, 1)
    assert meter.most_bytes() == 100
    assert Meter(quotas(), "User:u", "c").most_bytes() is None


@pytest.mark.parametrize(
    ("of", "changes"),
    [
        ((), {PRODUCER: 1}),
        (entity(robot="r"), {PRODUCER: 1}),
        (entity(user=""), {PRODUCER: 1}),
        (entity(ip="1.2.3.4", user="u"), {CONNECTION: 1}),
        (entity(ip="nowhere"), {CONNECTION: 1}),
        (entity(ip="1.2.3.4"), {PRODUCER: 1}),
        (entity(user="u"), {CONNECTION: 1}),
        (entity(user="u"), {"bytes": 1}),
        (entity(user="u"), {PRODUCER: 0}),
        (entity(user="u"), {PRODUCER: -5}),
        (entity(user="u"), {PRODUCER: 1.5}),
        (entity(user="u"), {REQUEST: float("nan")}),
    ],
)
def test_what_is_no_quota(of, changes):
    with pytest.raises(RequestError) as refused:
        quotas().after(of, changes.items())
    assert refused.value.code is Code.invalid_request


def test_a_rate_that_is_no_long_is_refused():
    with pytest.raises(RequestError, match="too large for a LONG"):
        quotas().after(entity(user="a"), [(PRODUCER, 1e300)])


def test_quotas_are_there_again_after_a_restart_and_a_part_of_one_is_taken_away(tmp_path):
    async def check() -> None:
        of = entity(user="ü", client_id=ANY)
        for start in range(3):
            directory = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
            seen: list[bool] = []
            found = Quotas(
                await Facts.load(directory, ManualClock()),
                ManualClock(),
                lambda q, seen=seen: seen.append(q.of_clients),
            )
            if start == 0:
                await found.change(
                    {of: found.after(of, [(PRODUCER, 5.0), (REQUEST, 1.5)]), entity(ip=ANY): {CONNECTION: 3}}
                )
            elif start == 1:
                assert found.limit(REQUEST, "ü", "x").value == 1.5
                await found.change({of: found.after(of, [(PRODUCER, None), (REQUEST, None)])})
            else:
                assert found.limit(REQUEST, "ü", "x") is None
            assert seen == [[False, True], [True, False], [False]][start]
            await directory.close()

    asyncio.run(check())


def test_time_in_which_a_coroutine_waits_is_not_counted():
    meter = Meter(quotas(), "User:u", "c")
    now = iter(range(100))

    async def work() -> str:
        await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "done"

    async def check() -> None:
        assert await timed(work(), meter, lambda: next(now)) == "done"

    asyncio.run(check())
    assert meter.seconds == 3  # three steps of one tick each


# --- at work ----------------------------------------------------------------------------------------------------------


def alter(raw, of, **values):
    ops = [{"key": key, "value": value, "remove": False} for key, value in values.items()]
    named = [{"entity_type": kind, "entity_name": name} for kind, name in of]
    (answer,) = raw.call(49, 1, entries=[{"entity": named, "ops": ops}], validate_only=False).entries
    assert answer.error_code is Code.none, answer
    return answer


def produce_fields(topic, size):
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"x" * size)])
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": data}


@pytest.mark.parametrize("version", [3, 8, 9, 11])
def test_a_producer_over_its_quota_is_answered_told_and_not_read_from(version):
    with mainstem.embedded() as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("t")
        alter(raw, entity(client_id="raw"), producer_byte_rate=50_000)
        started = time.monotonic()
        answer = raw.call(0, version, **produce_fields("t", 525_000))
        assert time.monotonic() - started < answer.throttle_time.total_seconds(), "it is told before that is over"
        assert 450 < answer.throttle_time.total_seconds() * 1000 < 560
        assert answer.responses[0].partition_responses[0].error_code is Code.none
        raw.call(18, 0)
        assert time.monotonic() - started > 0.45
        with RawClient(log.bootstrap, client_id="other") as other:
            assert other.call(0, version, **produce_fields("t", 1_000_000)).throttle_time.total_seconds() == 0


def test_a_wait_that_no_answer_can_tell_is_told_as_the_longest():
    """The request had no answer, ever."""
    with mainstem.embedded() as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("t")
        alter(raw, entity(client_id="raw"), producer_byte_rate=1)
        for _ in range(2):
            with RawClient(log.bootstrap) as other:
                other.call(0, 9, **produce_fields("t", 900_000))
        assert raw.call(0, 9, **produce_fields("t", 900_000)).throttle_time.total_seconds() * 1000 == 2**31 - 1


def test_what_a_producer_has_sent_behind_the_request_that_was_too_much_waits():
    """All that were on their way were taken at once, however many."""
    with mainstem.embedded() as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("t")
        alter(raw, entity(client_id="raw"), producer_byte_rate=50_000)
        started = time.monotonic()
        for _ in range(8):
            raw.send(0, 9, **produce_fields("t", 131_250))
        told = [raw.receive(0, 9).throttle_time.total_seconds() for _ in range(4)]
        assert time.monotonic() - started < 0.4
        assert told[:3] == [0, 0, 0]
        assert 0.45 < told[3] < 0.56
        raw.receive(0, 9)
        assert time.monotonic() - started > 0.45


def test_a_consumer_over_its_quota_gets_an_empty_answer_and_the_records_later():
    with mainstem.embedded() as log, RawClient(log.bootstrap) as raw, RawClient(log.bootstrap, client_id="r") as reader:
        raw.create_topic("t")
        for _ in range(3):
            raw.produce("t", b"x" * 60_000)
        alter(raw, entity(client_id="r"), consumer_byte_rate=10_000)

        def fetch(offset):
            partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            topics = [{"topic": "t", "partitions": [partition]}]
            return reader.call(1, 11, max_wait=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics)

        first = fetch(0)
        assert first.throttle_time.total_seconds() == 0
        assert len(first.responses[0].partitions[0].records) < 70_000, "ten seconds of the quota at most"
        second = fetch(1)
        assert second.responses == ()
        assert 1_900 < second.throttle_time.total_seconds() * 1000 < 2_100


def test_a_full_fetch_over_the_quota_opens_no_session():
    """Clients begin again after an answer without partitions: each left one behind, until no slot was free."""
    with mainstem.embedded() as log, RawClient(log.bootstrap) as raw, RawClient(log.bootstrap, client_id="r") as reader:
        raw.create_topic("t")
        raw.produce("t", b"x" * 3_000)
        alter(raw, entity(client_id="r"), consumer_byte_rate=1_000)

        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        fields = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": 0}
        fields["topics"] = [{"topic": "t", "partitions": [partition]}]
        for _ in range(10):  # ten seconds of the quota are three of them
            answer = reader.call(1, 11, **fields)
            assert bool(answer.session_id) is bool(answer.responses)
            if not answer.responses:
                return
        raise AssertionError("never over the quota")


def test_time_of_the_processor_and_partitions_have_quotas_too():
    with mainstem.embedded() as log, RawClient(log.bootstrap) as raw:
        alter(raw, entity(user="ANONYMOUS"), request_percentage=0.00001)
        waits = [raw.call(3, 9, topics=None).throttle_time.total_seconds() for _ in range(5)]
        assert 0 < max(waits) <= 1
        alter(raw, entity(user="ANONYMOUS"), request_percentage=1000, controller_mutation_rate=1)

        def create(name, version, count=6):
            topic = {"name": name, "num_partitions": count, "replication_factor": 1}
            answer = raw.call(19, version, topics=[topic], timeout=9_000)
            return answer.topics[0].error_code, answer.throttle_time.total_seconds()

        assert create("a", 6) == (Code.none, 0)
        code, wait = create("b", 6)
        assert code is Code.throttling_quota_exceeded
        assert 1 < wait < 3
        code, wait = create("c", 5, 12)
        assert code is Code.none, "an old client does not know the refusal"
        assert 4 < wait < 8


def make_by_asking(raw):
    raw.call(3, 9, topics=[{"name": "new"}], allow_auto_topic_creation=True)


def ask_whether_it_could_be_made(raw):
    topic = {"name": "new", "num_partitions": 16, "replication_factor": 1}
    raw.call(19, 7, topics=[topic], timeout=9_000, validate_only=True)


def grow(raw, *, validate_only=False):
    topic = {"name": "t", "count": 32, "assignments": None}
    raw.call(37, 3, topics=[topic], timeout=9_000, validate_only=validate_only)


def ask_whether_it_could_grow(raw):
    grow(raw, validate_only=True)


def delete(raw):
    raw.call(20, 5, topic_names=["t"], timeout=9_000)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (make_by_asking, {"t", "new"}),
        (ask_whether_it_could_be_made, {"t"}),
        (grow, {"t"}),
        (ask_whether_it_could_grow, {"t"}),
        (delete, set()),
    ],
)
def test_whatever_makes_or_deletes_partitions_has_a_quota(change, left):
    with mainstem.embedded(broker={"num_partitions": 16}) as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("t", 16)
        alter(raw, entity(user="ANONYMOUS"), controller_mutation_rate=1)
        change(raw)
        topic = {"name": "refused", "num_partitions": 1, "replication_factor": 1}
        answer = raw.call(19, 7, topics=[topic], timeout=9_000)
        assert answer.topics[0].error_code is Code.throttling_quota_exceeded
        names = {each.name for each in raw.call(3, 9, topics=None).topics if not each.is_internal}
        assert names == left


def test_too_many_connections_per_second_from_an_address_are_kept_waiting_and_closed(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            await broker.quotas.change({entity(ip="127.0.0.1"): {CONNECTION: 1.0}})
            clients = [await Client.connect(broker) for _ in range(15)]
            for client in clients[:10]:
                await client.call(18, 0)
            started = time.monotonic()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await clients[10].call(18, 0)
            assert time.monotonic() - started > 0.5
            await until(lambda: len(broker.connections) == 10, "those that were refused have gone")
            assert time.monotonic() - started < 5
            await asyncio.sleep(1.2)  # at the quota's rate one more may come, though others were refused
            later = await Client.connect(broker)
            await later.call(18, 0)
            for client in (*clients, later):
                client.close()

    asyncio.run(check())


def test_librdkafka_is_slowed_down_to_its_quota():
    with mainstem.embedded() as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("t")
        alter(raw, entity(client_id="slow"), producer_byte_rate=50_000, consumer_byte_rate=50_000)
        throttled = []
        producer = Producer(
            {"bootstrap.servers": log.bootstrap, "client.id": "slow", "linger.ms": 0, "throttle_cb": throttled.append}
        )
        started = time.monotonic()
        for _ in range(60):
            producer.produce("t", b"x" * 10_000)
            producer.flush(30)
        producer.poll(0.1)
        assert time.monotonic() - started > 1.5  # 600 kB, of which 500 come at once
        assert throttled
        consumer = Consumer(
            {"bootstrap.servers": log.bootstrap, "client.id": "slow", "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        started, got = time.monotonic(), 0
        while got < 60:
            got += len(consumer.consume(60 - got, 30))
        assert time.monotonic() - started > 1.5
        consumer.close()


@pytest.mark.timeout(240)
def test_kafkas_tool_sets_and_tells_quotas():
    with mainstem.embedded(broker=BrokerConfig(port=0)) as log:
        configs = ("kafka-configs", "--bootstrap-server", log.bootstrap)
        of = ("--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-default")
        kafka_tools.run(*configs, "--alter", *of, "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
        said = kafka_tools.run(*configs, "--describe", *of).stdout
        assert "producer_byte_rate=1024.0" in said
        assert "request_percentage=12.5" in said
        kafka_tools.run(*configs, "--alter", *of, "--delete-config", "producer_byte_rate")
        assert "producer_byte_rate" not in kafka_tools.run(*configs, "--describe", *of).stdout
        assert MUTATION == "controller_mutation_rate"


@pytest.mark.parametrize("spelling", ["::1", "0:0:0:0:0:0:0:1"])
def test_connections_of_an_address_are_counted_however_it_is_spelt(spelling):
    found = quotas((entity(ip=spelling), {CONNECTION: 1}))
    waits = [found.connects("0:0:0:0:0:0:0:1") for _ in range(11)]
    assert waits[:10] == [0] * 10
    assert waits[10] > 0
    assert found.connects("0:0:0:0:0:0:0:2") == 0


def test_a_quota_of_next_to_nothing_is_one():
    """Nothing could be answered any more, for infinity is no number of milliseconds."""
    found = quotas((entity(user=None), {REQUEST: 1e-310, MUTATION: 1e-310}))
    assert found.used(REQUEST, "a", "c", 1) == 1_000
    assert found.used(MUTATION, "a", "c", 1) > 2**30
    assert found.wait_ms(MUTATION, "a", "c", 1) > 2**30


def test_long_client_ids_are_not_kept():
    """275 MB of them, by clients that had not said who they are."""
    found = quotas((entity(client_id=None), {PRODUCER: 100}))
    one, other = "c" * 30_000, "c" * 29_999 + "d"
    assert found.used(PRODUCER, "a", one, 2_000) == 10_000
    assert found.used(PRODUCER, "a", other, 1_000) == 0, "it is another"
    assert found.used(PRODUCER, "a", one, 0) == 10_000
    assert not found._limits
    assert max(len(name) for key in found._rates for name in key) < 400
