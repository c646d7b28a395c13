"""Two thousand partitions in one log that may have 1,024 files open: all of them written, killed, there again."""

import signal
import subprocess
import sys
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import processes
from tests.support.ports import free_port

_PARTITIONS = 2_000
_ROUNDS = 3


def _started(data: Path, port: int) -> "subprocess.Popen[str]":
    command = ["prlimit", "--nofile=1024", sys.executable, "-m", "mainstem", "log", "start", "--log-level", "error"]
    listening = [*command, "--data", str(data), "--listen", f"127.0.0.1:{port}"]
    process = processes.start(listening, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("listening on ")
    return process


def _send(bootstrap: str, number: int) -> None:
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for partition in range(_PARTITIONS):
        producer.produce(
            "many",
            f"{partition}/{number}",
            partition=partition,
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(120) == 0
    assert failed == []


def _read(bootstrap: str, count: int) -> dict[int, list[tuple[int, str]]]:
    found: dict[int, list[tuple[int, str]]] = {}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("many", partition, OFFSET_BEGINNING) for partition in range(_PARTITIONS)])
    while count:
        messages = consumer.consume(count, timeout=30)
        assert messages, f"{count} records are not there"
        for message in messages:
            assert message.error() is None
            found.setdefault(message.partition(), []).append((message.offset(), message.value().decode()))
        count -= len(messages)
    consumer.close()
    return found


def test_two_thousand_partitions_are_there_after_each_kill(tmp_path):
    port = free_port()
    bootstrap = f"127.0.0.1:{port}"
    for number in range(_ROUNDS):
        with _started(tmp_path / "data", port) as process:
            try:
                if not number:
                    admin = AdminClient({"bootstrap.servers": bootstrap})
                    admin.create_topics([NewTopic("many", _PARTITIONS)])["many"].result(60)
                _send(bootstrap, number)
                found = _read(bootstrap, _PARTITIONS * (number + 1))
                for partition in range(_PARTITIONS):
                    assert found[partition] == [(at, f"{partition}/{at}") for at in range(number + 1)]
            finally:
                processes.stop(process, signal_number=signal.SIGKILL)
