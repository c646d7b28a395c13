"""librdkafka's producers and consumers as load: handles of this process, one thread each, the same on both sides.

A JVM for each of eight producers would be eight heaps and compilers on a machine of two cores: they would measure each
other. Here eight handles share one process. Python's lock is held while records are handed over (produce_batch: 0.35
us each) or taken, and free in librdkafka's own threads, which build, send and read the batches. So the client has a
limit of its own, below 3 million records/s; it is the same for both logs, and both are measured in turn.
"""

import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.servers import Connection, end_offsets, framed

_AT_ONCE = 1000


def _together(jobs: list[Callable[[], None]]) -> float:
    """Run each in a thread of its own; the seconds until the last ended. Raises what the first that failed raised."""
    failed: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if failed:
        raise failed[0]
    return took


def producer(bootstrap: str, **settings: str | int) -> Producer:
    """One that is connected: the first record must not wait for that."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    handle = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0, **names})
    handle.list_topics(timeout=30)
    return handle


def consumer(bootstrap: str, **settings: str | int) -> Consumer:
    """With librdkafka's defaults, and no group: it is told its partitions."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    common = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 0}
    return Consumer({**common, **names})


# -- as fast as it goes -----------------------------------------------------------------------------------------------


def produce_all(
    bootstrap: str,
    topic: str,
    records: int,
    size: int,
    *,
    handles: int = 1,
    partitions: int = 1,
    everywhere: bool = False,
    values: Callable[[int, int], list[dict[str, Any]]] | None = None,
) -> float:
    """Records per second until all were acknowledged; the handles share the records, and the partitions too, or with
    `everywhere` each sends to all of them.

    `values(first, count)` gives other records than `size` equal bytes, to partition 0.
    """
    opened = [producer(bootstrap, linger_ms=5, queue_buffering_max_messages=200_000) for _ in range(handles)]
    shares = [records // handles + (number < records % handles) for number in range(handles)]

    def send(number: int) -> None:
        handle, sent = opened[number], 0
        places = range(partitions) if everywhere else range(number % partitions, partitions, handles)
        many = max(_AT_ONCE, len(places))
        same: list[dict[str, Any]] = [
            {"value": b"x" * size, "partition": places[one % len(places)]} for one in range(many)
        ]
        while sent < shares[number]:
            count = min(shares[number] - sent, many)
            batch = values(sum(shares[:number]) + sent, count) if values else same[:count]
            while batch:
                handle.produce_batch(topic, batch)
                batch = [each for each in batch if each.pop("_error", None) is not None]  # the queue is full
                handle.poll(0.01 if batch else 0)
            sent += count
        assert handle.flush(600) == 0, "not all records were answered"

    before = end_offsets(bootstrap, topic, partitions)
    took = _together([partial(send, number) for number in range(handles)])
    found = end_offsets(bootstrap, topic, partitions) - before
    assert found >= records, f"{topic}: {found} of {records} records are there"
    return records / took


def consume_all(
    bootstrap: str, topic: str, *, handles: int = 1, partitions: int = 1, **settings: str | int
) -> tuple[int, int, float]:
    """Records, bytes of their values, and the seconds for all that is there now; the handles share the partitions."""
    opened = [consumer(bootstrap, **settings) for _ in range(handles)]
    read, sizes = [0] * handles, [0] * handles
    left = [0] * handles
    for number, handle in enumerate(opened):
        mine = [TopicPartition(topic, one, OFFSET_BEGINNING) for one in range(number, partitions, handles)]
        for each in mine:
            low, high = handle.get_watermark_offsets(each, timeout=30)
            left[number] += high - low

    def receive(number: int) -> None:
        handle = opened[number]
        handle.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in range(number, partitions, handles)])
        while read[number] < left[number]:
            got = handle.consume(min(10_000, left[number] - read[number]), timeout=0.2)  # it waits for so many
            for message in got:
                _check(message)
            read[number] += len(got)
            sizes[number] += sum(map(len, got))

    took = _together([partial(receive, number) for number in range(handles)])
    for handle in opened:
        handle.close()
    return sum(read), sum(sizes), took


def fetch_all(bootstrap: str, topic: str, size: int, *, at_once: int) -> tuple[int, float]:
    """Bytes of the batches of partition 0, and the seconds, by Fetch requests of `at_once` bytes that nothing decodes.

    A client that costs next to nothing: of each answer only where its batches end is looked at. `size` bytes
    are there at least.

    Raises:
        AssertionError: an error code in an answer, or the end before `size` bytes.
    """
    offset, total, began = 0, 0, time.perf_counter()
    with closing(Connection(bootstrap)) as connection:
        while total < size:
            # Version 4: no replica, wait 500 ms, 1 byte at least; https://kafka.apache.org/protocol.html, Fetch
            body = struct.pack(">iiiibi", -1, 500, 1, at_once, 0, 1) + struct.pack(">h", len(topic)) + topic.encode()
            connection.send(framed(1, 4, body + struct.pack(">iiqi", 1, 0, offset, at_once)))
            answer = memoryview(connection.receive())
            at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4  # up to the error code: correlation id, throttle, topic, partition
            code, high_watermark, _, aborted = struct.unpack_from(">hqqi", answer, at)
            assert code == 0, f"{topic}: error code {code}"
            at += 2 + 8 + 8 + 4 + 16 * max(aborted, 0)
            length = struct.unpack_from(">i", answer, at)[0]
            at, end = at + 4, at + 4 + length
            while at + 27 <= end:
                base, batch = struct.unpack_from(">qi", answer, at)
                if at + 12 + batch > end:
                    break  # cut short: the next answer begins with it
                offset = base + struct.unpack_from(">i", answer, at + 23)[0] + 1
                at, total = at + 12 + batch, total + 12 + batch
            assert offset < high_watermark or total >= size, f"{topic}: {total} of {size} bytes"
    return total, time.perf_counter() - began


def _check(message: Message) -> None:
    if message.error() is not None:
        raise KafkaException(message.error())


# -- at a rate --------------------------------------------------------------------------------------------------------


def produce_at_rate(
    bootstrap: str,
    topic: str,
    rate: int,
    size: int,
    *,
    seconds: float,
    partitions: int = 1,
    until: threading.Event | None = None,
    begun: threading.Event | None = None,
    skip_seconds: float = 1,
) -> list[float]:
    """Seconds from when each record was due to its answer; those of the first second are left out.

    It ends after `seconds`, or as soon as `until` is set; `begun` is set with the first record. A record that is sent
    late, because the one before waited, has waited too.
    """
    handle = producer(bootstrap, linger_ms=0)
    waits: list[float] = []
    value, over = b"x" * size, threading.Event()

    def answered(due: float, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        waits.append(time.perf_counter() - due)

    def poll() -> None:
        while not over.is_set():
            handle.poll(0.1)

    def send() -> None:
        try:
            began = time.perf_counter() + 0.1
            for number in range(int(rate * seconds)):
                due = began + number / rate
                _sleep_until(due)
                if until is not None and until.is_set() and number:
                    break
                told = partial(answered, due) if due - began >= skip_seconds else None
                handle.produce(topic, value, partition=number % partitions, on_delivery=told)
                if begun is not None:
                    begun.set()
            assert handle.flush(120) == 0, "not all records were answered"
        finally:
            over.set()

    _together([send, poll])
    assert waits, "too short: no record after the first second"
    return waits


def end_to_end(bootstrap: str, topic: str, rate: int, size: int, *, seconds: float) -> list[float]:
    """Seconds from when each record was due to be sent until a consumer that polls has it; without the first second's.

    Both with linger 0 and else librdkafka's defaults.
    """
    reader, handle = consumer(bootstrap), producer(bootstrap, linger_ms=0)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    count, skipped, began, due_of = int(rate * seconds), rate, time.perf_counter() + 1, {}
    waits: list[float] = []

    def send() -> None:
        for number in range(count):
            due = began + number / rate
            due_of[number] = due
            _sleep_until(due)
            handle.produce(topic, b"%016d" % number + b"x" * (size - 16), partition=0)
            handle.poll(0)
        assert handle.flush(120) == 0, "not all records were answered"

    def receive() -> None:
        got, until = 0, began + seconds + 60
        while got < count:
            assert time.perf_counter() < until, f"{got} of {count} records came back"
            message = reader.poll(0.1)
            if message is None:
                continue
            now = time.perf_counter()
            _check(message)
            number = int(message.value()[:16])  # type: ignore[index]
            assert number == got, f"record {number} came back, expected {got}"
            got += 1
            if number >= skipped:
                waits.append(now - due_of[number])

    _together([send, receive])
    reader.close()
    return waits


def _sleep_until(due: float) -> None:
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)
