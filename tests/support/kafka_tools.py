"""Kafka's own Java programs, unmodified, from the locked jars."""

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

import mainstem
from mainstem.process.jars import fetch, read_lock
from mainstem.process.java import cache_directory, find_java
from tests.support import processes

LOCK = Path(__file__).with_name("kafka.lock")
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a JVM that lives for seconds: compile little, and do not spread over all cores."""
LOGGING = Path(__file__).with_name("kafka-log4j2.properties")
QUIET_LOGGING = Path(__file__).with_name("kafka-log4j2-tools.properties")

CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}
"""The names of Kafka's scripts and the classes they run."""


@cache
def classpath() -> str:
    """The jars of Apache Kafka 4.3.0, fetched if missing."""
    return ":".join(str(path) for path in fetch(read_lock(LOCK)))


@cache
def _java() -> str:
    return str(find_java().executable)


def command(
    tool: str,
    *arguments: str,
    heap_mb: int = 128,
    logging: Path = QUIET_LOGGING,
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """The command line that runs `tool`: a name in `CLASSES` or a class."""
    return [
        _java(),
        f"-Xmx{heap_mb}m",
        *((*SHORT_LIVED, *_class_archive()) if heap_mb <= 128 else ("-XX:+UseG1GC",)),
        f"-Dlog4j2.configurationFile={logging}",
        *(f"-D{name}={value}" for name, value in (properties or {}).items()),
        "-cp",
        classpath(),
        CLASSES.get(tool, tool),
        *arguments,
    ]


@cache
def _class_archive() -> tuple[str, ...]:
    """Options for a JVM to take the classes of Kafka's admin client from an archive,
    made at the first use on a machine.

    A tool takes 1 s of the processor with it instead of 2, and the tests run a hundred of them.
    """
    name = hashlib.sha256(f"{_java()}\n{classpath()}".encode()).hexdigest()[:16]
    archive = cache_directory() / "kafka-tools" / f"{name}.jsa"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        new = archive.with_name(f"{name}.{os.getpid()}")
        made = [_java(), *SHORT_LIVED, f"-XX:ArchiveClassesAtExit={new}", "-cp", classpath(), CLASSES["kafka-topics"]]
        with mainstem.embedded() as log:
            subprocess.run([*made, "--bootstrap-server", log.bootstrap, "--list"], check=False, capture_output=True)
        if not new.exists():
            return ()
        new.replace(archive)
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


class ToolResult(msgspec.Struct, frozen=True):
    """What a tool said, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


class ToolFailed(AssertionError):
    """A tool ended with another exit code than 0; the message has everything it said."""


def run(
    tool: str, *arguments: str, stdin: str | bytes = b"", seconds: float = 180, check: bool = True, heap_mb: int = 128
) -> ToolResult:
    """Run `tool` to its end; stdout and stderr are in the result.

    Raises:
        ToolFailed: its exit code is not 0 (unless `check` is false).
    """
    data = stdin.encode() if isinstance(stdin, str) else stdin
    ended = subprocess.run(
        command(tool, *arguments, heap_mb=heap_mb), check=False, input=data, capture_output=True, timeout=seconds
    )
    result = ToolResult(ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace"))
    if check and result.returncode != 0:
        said = f"{result.stdout}{result.stderr}".strip()
        raise ToolFailed(f"{tool} {' '.join(arguments)}: exit code {result.returncode}\n{said}")
    return result


def run_together(*runs: Sequence[str], seconds: float = 180) -> list[str]:
    """Run several tools (each: name, arguments...) at the same time; their stdouts, in order.

    Raises:
        ToolFailed: one of them failed.
    """
    started = [
        processes.start(command(*one), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        for one in runs
    ]
    outputs = []
    for one, process in zip(runs, started, strict=True):
        out, err = process.communicate(timeout=seconds)
        if process.returncode != 0:
            raise ToolFailed(f"{' '.join(one)}: exit code {process.returncode}\n{out}{err}")
        outputs.append(out)
    return outputs
