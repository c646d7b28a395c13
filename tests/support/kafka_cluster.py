"""A real Apache Kafka 4.3.0, one broker or three, started from the locked jars on free ports.

with KafkaCluster(brokers=3, directory=tmp_path) as kafka:
    kafka.bootstrap            # "127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003"
    kafka.kill(kafka.leader("orders", 0))
"""

import base64
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support import processes
from tests.support.kafka_tools import LOGGING, command
from tests.support.ports import free_ports


class KafkaNotReady(AssertionError):
    """A broker did not start in time; the message has the end of its log."""


class KafkaCluster:
    """Brokers 1..n in KRaft's combined mode. Every broker is killed when this process ends, however it ends.

    `features`: levels of Kafka's features, where not the newest; `{"transaction.version": 1}` as before Kafka 4.
    """

    def __init__(
        self,
        brokers: int,
        directory: Path,
        *,
        heap_mb: int = 256,
        overrides: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        assert brokers in (1, 3), "one broker, or three for replication"
        self.directory = Path(directory)
        self.heap_mb = heap_mb
        self.overrides = dict(overrides or {})
        self.features = dict(features or {})
        ports = free_ports(2 * brokers)
        self.ports = dict(enumerate(ports[:brokers], 1))
        self._controller_ports = dict(enumerate(ports[brokers:], 1))
        first, *others = uuid.uuid4().bytes
        # Without the highest bit it does not begin with a dash, which Kafka's tools take for an option.
        self._cluster_id = base64.urlsafe_b64encode(bytes([first & 0x7F, *others])).decode().rstrip("=")
        self._processes: dict[int, subprocess.Popen[Any]] = {}

    @property
    def brokers(self) -> tuple[int, ...]:
        return tuple(self.ports)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def __enter__(self) -> "KafkaCluster":
        try:
            self._format()
            for broker in self.brokers:
                self.start(broker, wait=False)
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all brokers at once, without their slow clean shutdown: the data is not needed any more."""
        for process in self._processes.values():
            processes.stop(process, signal_number=signal.SIGKILL)
        self._processes.clear()

    def start(self, broker: int, *, wait: bool = True) -> None:
        """Start `broker` (again), on its port and its data."""
        assert not self.is_running(broker), f"broker {broker} is running"
        with self.log(broker).open("ab") as out:
            self._processes[broker] = processes.start(
                command("kafka.Kafka", str(self._properties(broker)), heap_mb=self.heap_mb, logging=LOGGING),
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        if wait:
            self.wait_until_ready()

    def stop(self, broker: int, *, seconds: float = 60) -> None:
        """Stop `broker` in order: it hands over its partitions first."""
        processes.stop(self._processes.pop(broker), seconds=seconds)

    def kill(self, broker: int) -> None:
        """SIGKILL, as a crash."""
        processes.stop(self._processes.pop(broker), signal_number=signal.SIGKILL)

    def is_running(self, broker: int) -> bool:
        process = self._processes.get(broker)
        return process is not None and process.poll() is None

    def process_id(self, broker: int) -> int:
        return self._processes[broker].pid

    def log(self, broker: int) -> Path:
        """What `broker` wrote about itself, over all its starts."""
        return self.directory / f"broker-{broker}.log"

    def data(self, broker: int) -> Path:
        return self.directory / f"broker-{broker}"

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def leader(self, topic: str, partition: int, *, seconds: float = 30) -> int:
        """The broker that leads the partition, once it has one."""
        admin, until = self.admin(), time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                found = admin.list_topics(topic, timeout=5).topics[topic].partitions.get(partition)
            except KafkaException:
                found = None
            if found is not None and found.leader in self.brokers and self.is_running(found.leader):
                return int(found.leader)
            time.sleep(0.1)
        raise AssertionError(f"{topic}-{partition}: no leader in {seconds} s")

    def wait_until_ready(self, *, seconds: float = 60) -> None:
        """Return when every running broker is in the metadata.

        Raises:
            KafkaNotReady: one ended, or time is up.
        """
        admin, until = self.admin(), time.monotonic() + seconds
        while time.monotonic() < until:
            for broker, process in self._processes.items():
                if process.poll() is not None:
                    raise KafkaNotReady(f"broker {broker} ended with {process.returncode}\n{self._end_of_log(broker)}")
            try:
                listed = admin.list_topics(timeout=2).brokers
            except KafkaException:
                continue
            if set(listed) >= {broker for broker in self.brokers if self.is_running(broker)}:
                return
            time.sleep(0.1)
        raise KafkaNotReady("\n".join(f"broker {i} after {seconds} s:\n{self._end_of_log(i)}" for i in self.brokers))

    def wait_until_in_sync(self, *, seconds: float = 120) -> None:
        """Return when every partition has all its replicas again: another broker may go now."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            topics = self.admin().list_topics(timeout=5).topics.values()
            behind = [str(t) for t in topics for p in t.partitions.values() if len(p.isrs) < len(p.replicas)]
            if not behind:
                return
            time.sleep(0.2)
        raise KafkaNotReady(f"not in sync after {seconds} s: {', '.join(behind)}")

    def _end_of_log(self, broker: int) -> str:
        log = self.log(broker)
        return "\n".join(log.read_text(errors="replace").splitlines()[-30:]) if log.exists() else "(no log)"

    def _properties(self, broker: int) -> Path:
        return self.directory / f"broker-{broker}.properties"

    def _format(self) -> None:
        """Write each broker's settings and let Kafka's own tool format its directory, all at the same time."""
        self.directory.mkdir(parents=True, exist_ok=True)
        formatting = []
        for broker in self.brokers:
            lines = (f"{name}={value}" for name, value in self._settings(broker).items())
            self._properties(broker).write_text("\n".join(lines) + "\n")
            levels = [f"--feature={name}={level}" for name, level in self.features.items()]
            where = ("-t", self._cluster_id, "-c", str(self._properties(broker)))
            tool = command("kafka-storage", "format", *where, *levels)
            formatting.append(
                (broker, processes.start(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            )
        for broker, process in formatting:
            said, _ = process.communicate(timeout=120)
            if process.returncode != 0:
                raise KafkaNotReady(f"broker {broker} could not be formatted:\n{said}")

    def _settings(self, broker: int) -> dict[str, str]:
        replicas = len(self.brokers)
        in_sync = 2 if replicas == 3 else 1
        return {
            "process.roles": "broker,controller",
            "node.id": str(broker),
            "controller.quorum.voters": ",".join(f"{i}@127.0.0.1:{port}" for i, port in self._controller_ports.items()),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[broker]},"
            f"CONTROLLER://127.0.0.1:{self._controller_ports[broker]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.ports[broker]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data(broker)),
            "num.partitions": "1",
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(in_sync),
            # Few partitions of internal topics: 50 each, three times, is most of a small machine's start.
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "log.cleaner.dedupe.buffer.size": "16777216",
            # A dead broker is noticed in seconds, as tests have no minutes.
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "3000",
            "controller.quorum.election.timeout.ms": "1000",
            "controller.quorum.fetch.timeout.ms": "2000",
            **self.overrides,
        }
