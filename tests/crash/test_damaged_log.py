"""A log's segments are damaged at random, it is repaired, and the repair killed: what librdkafka has been promised is
there, or was in a damaged batch and is told; what was aborted stays so; and clients go on.

    make crash             a hundred damaged logs
"""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

import mainstem
from mainstem.records import CorruptBatch, decode_header
from tests.support.processes import start, stop

PLAIN, IN_TRANSACTIONS, LATEST = "plain", "in-transactions", "latest"
PARTITIONS = {PLAIN: 2, IN_TRANSACTIONS: 2, LATEST: 1}
CONFIG = {PLAIN: {}, IN_TRANSACTIONS: {}, LATEST: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}}
BROKER = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
INTERNAL = {
    "__mainstem_metadata": "the metadata",
    "__consumer_offsets": "groups",
    "__transaction_state": "transactions",
}
OFFSET_BYTES = 8  # no CRC covers it, and where compaction has left gaps nothing else says what it was
Place = tuple[str, int]


class Promised(msgspec.Struct):
    """What clients were told."""

    acknowledged: dict[Place, dict[int, bytes]] = msgspec.field(default_factory=dict)
    ends: dict[bytes, str] = msgspec.field(default_factory=dict)
    """Of the transaction of a value: committed, aborted or open."""
    latest: dict[bytes, int] = msgspec.field(default_factory=dict)
    """Key to the offset of its last record, of the compacted topic."""
    committed_offset: int = 0

    def note(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        place = message.topic(), message.partition()
        self.acknowledged.setdefault(place, {})[message.offset()] = message.value()
        if place[0] == LATEST:
            self.latest[message.key()] = message.offset()


class Batch(NamedTuple):
    position: int
    data: bytes
    offsets: range


def producer_of(bootstrap: str, **options: Any) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, **options})


def fill(directory: Path, *, is_killed: bool) -> Promised:
    """Some hundred batches in segments of 4 KB, and a group that has committed."""
    promised, numbers = Promised(), random.Random(5)
    settings = {"housekeeping_interval_ms": 200, "journal_bytes": 30_000}
    with mainstem.embedded(directory, child=True, broker=BROKER, log=settings) as log:
        for topic, partitions in PARTITIONS.items():
            log.create_topic(topic, partitions, {"segment.bytes": "4000", **CONFIG[topic]})
        plain = producer_of(log.bootstrap)
        sides = [producer_of(log.bootstrap, **{"transactional.id": f"t{side}"}) for side in range(2)]
        for each in sides:
            each.init_transactions(30)
        for number in range(60):
            for count in range(numbers.randrange(1, 8)):
                value = f"{number}.{count}:{'x' * numbers.randrange(200)}".encode()
                plain.produce(PLAIN, value, partition=number % 2, on_delivery=promised.note)
                key = f"k{numbers.randrange(9)}"
                plain.produce(LATEST, value, key, partition=0, on_delivery=promised.note)
            plain.flush(30)
        for number in range(40):
            # Of both one after the other, so that their batches lie between each other's.
            each, end = sides[number % 2], numbers.choice(["committed", "committed", "aborted"])
            if number > 1:
                promised.ends |= finish(each, promised, f"t{number - 2}", end)
            each.begin_transaction()
            for part in range(2):
                value = f"t{number}.{part}".encode()
                promised.ends[value] = "open"
                each.produce(IN_TRANSACTIONS, value, partition=part, on_delivery=promised.note)
            each.flush(30)
        consumer = Consumer({"bootstrap.servers": log.bootstrap, "group.id": "readers"})
        promised.committed_offset = 17
        consumer.commit(offsets=[TopicPartition(PLAIN, 0, 17)], asynchronous=False)
        consumer.close()
        time.sleep(0.6)  # compactions
        if is_killed:
            log.kill()
    return promised


def finish(producer: Producer, promised: Promised, name: str, end: str) -> dict[bytes, str]:
    if end == "committed":
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    return dict.fromkeys((f"{name}.0".encode(), f"{name}.1".encode()), end)


def batches_of(path: Path) -> list[Batch]:
    data, position, found = path.read_bytes(), 0, []
    while position < len(data):
        try:
            header = decode_header(data, position)
        except CorruptBatch:
            break
        offsets = range(header.base_offset, header.next_offset)
        found.append(Batch(position, data[position : position + header.size], offsets))
        position += header.size
    return found


def place_of(path: Path) -> Place:
    topic, _, number = path.parent.name.rpartition("-")
    return topic, int(number)


def damage(path: Path, draw: random.Random) -> str:
    """Change the file; says how."""
    batches, data = batches_of(path), bytearray(path.read_bytes())
    how = draw.choice(["flip", "flip", "flips", "zeros", "cut", "garbage", "remove"])
    if how in ("flip", "flips"):
        for _ in range(1 if how == "flip" else draw.randrange(2, 10)):
            batch = draw.choice(batches)
            first = OFFSET_BYTES if place_of(path)[0] == LATEST else 0
            data[batch.position + draw.randrange(first, len(batch.data))] ^= 1 << draw.randrange(8)
    elif how == "zeros":
        at, length = draw.randrange(len(data)), draw.choice([1, 64, 512, 4096])
        data[at : at + length] = bytes(len(data[at : at + length]))
    elif how == "cut":
        del data[draw.randrange(len(data)) :]
    elif how == "garbage":
        data += draw.randbytes(draw.randrange(1, 300))
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(data)
    return how


def whole_of(path: Path, batches: list[Batch]) -> set[int]:
    """The offsets of those that are in the file as they were."""
    data = path.read_bytes() if path.exists() else b""
    whole = [each for each in batches if data[each.position : each.position + len(each.data)] == each.data]
    return {offset for each in whole for offset in each.offsets}


def repair_command(directory: Path, place: Place, *options: str) -> list[str]:
    topic, partition = place
    command = [sys.executable, "-m", "mainstem", "log", "repair", "--data", str(directory), "--json", *options]
    return [*command, topic, str(partition)]


def repaired(directory: Path, place: Place, draw: random.Random) -> dict[str, Any]:
    """Asked first, in half of all cases killed, then done: what was told of all of it."""
    asked = subprocess.run(repair_command(directory, place), capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode in (0, 1), asked.stderr
    told = json.loads(asked.stdout)
    if told["result"] == "no damage":
        return told
    if draw.randrange(2):
        process = start(repair_command(directory, place, "--yes"), stdout=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.2, 0.6))
        stop(process, signal_number=9)
    done = subprocess.run(
        repair_command(directory, place, "--yes"), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"] in ("repaired", "no damage")
    return told | {"open_transactions": json.loads(done.stdout).get("open_transactions", {})}


def everything(bootstrap: str, isolation: str) -> dict[Place, dict[int, bytes]]:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "afterwards", "isolation.level": isolation,
        "enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "earliest", "check.crcs": True,
    })  # fmt: skip
    open_ends = {(topic, number) for topic, count in PARTITIONS.items() for number in range(count)}
    found: dict[Place, dict[int, bytes]] = {place: {} for place in open_ends}
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in open_ends])
    until = time.monotonic() + 60
    while open_ends:
        assert time.monotonic() < until, f"no end of {open_ends}"
        for message in consumer.consume(1_000, 0.2):
            place = message.topic(), message.partition()
            if message.error() is None:
                assert message.offset() > max(found[place], default=-1)
                found[place][message.offset()] = message.value()
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                open_ends.discard(place)
    consumer.close()
    return found


def check(original: Path, work: Path, promised: Promised, seed: int) -> int:
    """One damaged log; how many offsets of its topics were lost."""
    draw = random.Random(seed)
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(original, work, symlinks=True)
    segments = {path: found for path in sorted(work.glob("*/*.log")) if (found := batches_of(path))}
    chosen = draw.sample(list(segments), draw.randrange(1, 5))
    done = [f"{path.relative_to(work)}: {damage(path, draw)}" for path in chosen]
    whole: dict[Place, set[int]] = {}
    for path, batches in segments.items():
        whole.setdefault(place_of(path), set()).update(whole_of(path, batches))
    about = f"seed {seed}: {', '.join(done)}"
    try:
        # The coordinators' topics are made by the metadata, without which nothing is known of any other.
        places = sorted({place_of(path) for path in chosen}, key=lambda place: place[0] != "__mainstem_metadata")
        told = {place: repaired(work, place, draw) for place in places}
        return check_repaired(work, promised, whole, told)
    except BaseException as error:
        error.add_note(about)
        raise


def check_repaired(
    work: Path, promised: Promised, whole: dict[Place, set[int]], told: dict[Place, dict[str, Any]]
) -> int:
    lost = {
        place: {offset for each in one["damages"] for offset in range(each["first_offset"], each["end_offset"])}
        for place, one in told.items()
    }
    for place, offsets in lost.items():
        assert not offsets & whole[place], f"{place}: whole batches are lost"
    suffers = {INTERNAL[topic] for (topic, _), offsets in lost.items() if offsets and topic in INTERNAL}
    with mainstem.embedded(work, child=True, broker=BROKER) as log:
        written = everything(log.bootstrap, "read_uncommitted")
        for place, records in promised.acknowledged.items():
            kept = {offset: value for offset, value in records.items() if offset not in lost.get(place, set())}
            if place == (LATEST, 0):
                assert written[place].items() <= kept.items()
                assert kept.keys() & set(promised.latest.values()) <= written[place].keys()
            else:
                assert written[place] == kept, place
        for producer in (producer_of(log.bootstrap, **{"transactional.id": f"t{side}"}) for side in range(2)):
            producer.init_transactions(60)  # which aborts what is open
            producer.begin_transaction()
            for number in range(PARTITIONS[IN_TRANSACTIONS]):
                producer.produce(IN_TRANSACTIONS, b"new", partition=number)
            producer.commit_transaction(60)
        stuck = "transactions" in suffers or any(one.get("open_transactions") for one in told.values())
        if not stuck:
            committed = everything(log.bootstrap, "read_committed")
            for place, records in promised.acknowledged.items():
                if place[0] == IN_TRANSACTIONS:
                    ended = {
                        offset: value
                        for offset, value in records.items()
                        if promised.ends[value] == "committed" and offset not in lost.get(place, set())
                    }
                    assert committed[place].items() >= ended.items(), place
                    others = [value for offset, value in committed[place].items() if offset not in ended]
                    assert others == [b"new", b"new"], place
        consumer = Consumer({"bootstrap.servers": log.bootstrap, "group.id": "readers"})
        (found,) = consumer.committed([TopicPartition(PLAIN, 0)], timeout=30)
        assert "groups" in suffers or found.offset == promised.committed_offset
        consumer.close()
    return sum(len(offsets) for (topic, _), offsets in lost.items() if topic in PARTITIONS)


def check_many(directory: Path, seeds: range) -> None:
    for is_killed in (False, True):
        original = directory / f"original-{is_killed}"
        promised = fill(original, is_killed=is_killed)
        lost = [check(original, directory / "damaged", promised, seed) for seed in seeds]
        records = sum(map(len, promised.acknowledged.values()))
        end = "killed" if is_killed else "closed"
        print(
            f"{len(seeds)} damaged logs, {end} before, of {records} records: {sum(lost)} offsets lost, {lost.count(0)} times none"
        )


@pytest.mark.timeout(600)
def test_what_damage_has_not_touched_is_there_after_a_repair(tmp_path):
    check_many(tmp_path, range(5))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_what_damage_has_not_touched_is_there_after_many_repairs(tmp_path):
    check_many(tmp_path, range(1_000, 1_050))
