"""Kafka's own tools look after share groups, on our log as on Kafka's."""

import re
from collections.abc import Iterator

import pytest

from tests.contract.clients import Log
from tests.contract.test_share_groups import Group
from tests.support import kafka_tools
from tests.support.kafka_tools import ToolResult
from tests.support.routed import RoutedClient


@pytest.fixture
def group(log: Log, name: str) -> Iterator[Group]:
    """A share group with one member, which reads four partitions."""
    with RoutedClient(log.bootstrap) as client:
        client.find_coordinators("any")
        group = Group(client, name)
        client.produce(group.topic, b"one")
        group.joined("member-a", 4)
        yield group


def tool(log: Log, *arguments: str, name: str = "kafka-share-groups") -> ToolResult:
    return kafka_tools.run(name, "--bootstrap-server", log.bootstrap, *arguments, check=False)


def rows(said: ToolResult) -> list[list[str]]:
    """What a table says, below its title."""
    assert said.returncode == 0, said.stderr
    _, *found = [line.split() for line in said.stdout.splitlines() if line.strip()]
    return sorted(found)


@pytest.mark.timeout(900)  # a JVM per call, on a machine that may be busy
def test_a_group_from_its_first_member_to_its_end(log: Log, group: Group) -> None:
    name, topic = group.name, group.topic
    one = ("--group", name)
    members = tool(log, "--describe", *one, "--members", "--verbose")
    assert re.search(rf"{name} +member-a +\S+ +raw +4 +\d+ +{topic}:0,1,2,3", members.stdout)
    state = tool(log, "--describe", *one, "--state", "--verbose")
    assert re.search(rf"{name} +\S+ +\(\d\) +Stable +(\d+) +\1 +1", state.stdout)
    reset = ("--reset-offsets", *one, "--topic", topic)
    assert "is not empty" in tool(log, *reset, "--to-earliest", "--execute").stderr

    group.beat("member-a", -1)
    earliest = [[name, topic, str(number), "0"] for number in range(4)]
    assert rows(tool(log, *reset, "--to-earliest", "--execute")) == earliest
    lags = ["1", "0", "0", "0"]
    expected = [[*each, lag] for each, lag in zip(earliest, lags, strict=True)]
    assert rows(tool(log, "--describe", *one, "--offsets")) == expected
    latest = [[name, topic, str(number), "1" if number == 0 else "0"] for number in range(4)]
    assert rows(tool(log, "--reset-offsets", *one, "--all-topics", "--to-latest", "--execute")) == latest
    assert rows(tool(log, "--delete-offsets", *one, "--topic", topic)) == [[topic, "Successful"]]
    assert "was successful" in tool(log, "--delete", *one).stdout
    assert name not in tool(log, "--list").stdout.split()


def test_settings_of_a_group_that_is_not_there(log: Log, name: str) -> None:
    one = ("--entity-type", "groups", "--entity-name", name)
    change = ("--alter", *one, "--add-config", "share.auto.offset.reset=earliest")
    assert tool(log, *change, name="kafka-configs").returncode == 0
    assert "share.auto.offset.reset=earliest" in tool(log, "--describe", *one, name="kafka-configs").stdout
