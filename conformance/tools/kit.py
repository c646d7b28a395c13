"""What the tests of Kafka's command-line tools share: the tools at one broker, and names of one test's own."""

import re
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from conformance.frame import PASSWORD, USER, Server
from tests.support import kafka_tools, processes

SECONDS = 120.0
"""For one tool; the slowest wait for a group or a compaction, on a machine that may be busy."""


class Tools:
    """Kafka's tools at one broker.

    `name`: what a test calls its topics, groups and transactional ids; no other test does.
    """

    def __init__(self, server: Server, work: Path) -> None:
        self.name = f"tools-{uuid.uuid4().hex[:10]}"
        self.server = server
        self.bootstrap = server.bootstrap
        self.at = ("--bootstrap-server", server.bootstrap)
        self.admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        self._work = work
        self._out = work / "said.txt"
        work.mkdir()

    # --- tools ---

    def run(self, tool: str, *arguments: str, stdin: str = "", at: bool = True) -> str:
        """Its stdout; it has to end well. `at`: the address comes first, as most tools take it."""
        result = self._end(tool, arguments, stdin, at=at)
        said = f"{result.stdout}{result.stderr}".strip()
        assert result.returncode == 0, f"{tool} {' '.join(arguments)}: exit {result.returncode}: {said[-1000:]}"
        return result.stdout

    def refused(self, tool: str, *arguments: str, stdin: str = "", at: bool = True) -> str:
        """All that it says; it has to end badly."""
        result = self._end(tool, arguments, stdin, at=at)
        said = f"{result.stdout}{result.stderr}".strip()
        assert result.returncode != 0, f"{tool} {' '.join(arguments)} ended well: {said[-1000:]}"
        return said

    def says(self, tool: str, *arguments: str, stdin: str = "", at: bool = True) -> str:
        """All that it says, however it ends: some tools tell of an error and end well."""
        result = self._end(tool, arguments, stdin, at=at)
        return f"{result.stdout}{result.stderr}"

    def start(self, tool: str, *arguments: str) -> "subprocess.Popen[str]":
        """One that goes on, its stdout in a pipe."""
        return processes.start(
            kafka_tools.command(tool, *self.at, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _end(self, tool: str, arguments: tuple[str, ...], stdin: str, *, at: bool) -> kafka_tools.ToolResult:
        given = (*self.at, *arguments) if at else arguments
        try:
            result = kafka_tools.run(tool, *given, stdin=stdin, seconds=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            said = b"".join(each for each in (error.stdout, error.stderr) if each).decode(errors="replace")
            raise AssertionError(f"{tool} {' '.join(given)} did not end in {SECONDS:.0f} s: {said[-1000:]}") from None
        with self._out.open("a") as kept:
            kept.write(f"$ {tool} {' '.join(given)}\n{result.stdout}{result.stderr}exit {result.returncode}\n\n")
        return result

    # --- what they are given ---

    def topic(self, name: str | None = None, *, partitions: int = 1, **settings: str) -> str:
        """Make one; dots of a setting's name are underscores."""
        name = name or self.name
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        return name

    def produce(self, topic: str, *values: str, partition: int = 0, timestamps: tuple[int, ...] = ()) -> None:
        """One record for each value; all are acknowledged."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=partition, timestamp=timestamps[number] if timestamps else 0)
        assert producer.flush(30) == 0, f"{topic}: not acknowledged in 30 s"

    def transactional(self, **settings: str | int) -> Producer:
        """A producer whose transactional id is `name`."""
        return Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": self.name, "log_level": 0, **settings}
        )

    def file(self, name: str, text: str) -> str:
        """A file with that content; its path."""
        path = self._work / name
        path.write_text(text)
        return str(path)

    def document(self, name: str, content: object) -> str:
        """The same of JSON."""
        return self.file(name, msgspec.json.encode(content).decode())

    def login(self, **settings: str) -> tuple[str, str]:
        """HOST:PORT and a file of settings of somebody who has to log in: `USER`, who has no rights of its own."""
        jaas = "org.apache.kafka.common.security.scram.ScramLoginModule"
        lines = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{jaas} required username="{USER}" password="{PASSWORD}";',
            **settings,
        }
        path = self.file("login.properties", "".join(f"{key}={value}\n" for key, value in lines.items()))
        return self.server.with_scram, path


def rows(said: str) -> list[list[str]]:
    """The lines of a table, in columns."""
    return [line.split() for line in said.splitlines() if line.strip()]


def found(pattern: str, said: str) -> "re.Match[str]":
    """Where it is in there.

    Raises:
        AssertionError: it is not.
    """
    match = re.search(pattern, said, re.MULTILINE)
    assert match is not None, f"expected {pattern!r} in: {said[-1500:]}"
    return match


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, f"not in {SECONDS:.0f} s: {what}"
        time.sleep(0.2)
