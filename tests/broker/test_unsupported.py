"""`docs/unsupported.md` says what the handlers do: no more and no less."""

import re
from fnmatch import fnmatch

import pytest

from mainstem.broker.handlers import load_handlers
from mainstem.embedded_log import EmbeddedLog
from mainstem.log import TopicConfig
from tests.support.kafka_cluster import KafkaCluster
from tests.support.raw import RawClient
from tests.support.repository import PACKAGE, ROOT

TEXT = (ROOT / "docs" / "unsupported.md").read_text()
SERVED, _, NOT_SERVED = TEXT.partition("## APIs that are not served")


def listed() -> dict[int, tuple[int, int]]:
    rows = re.findall(r"\| (\d+) \| \w+ \| (\d+)(?:–(\d+))?", SERVED)
    return {int(key): (int(first), int(last or first)) for key, first, last in rows}


def numbers(text: str) -> set[int]:
    found: set[int] = set()
    for group in re.findall(r"\(([\d–, ]+)\)", text):
        for part in group.split(","):
            first, _, last = part.strip().partition("–")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_every_handler_is_listed_with_its_versions():
    assert listed() == {key: (each.min_version, each.max_version) for key, each in load_handlers().items()}


def test_no_handled_api_is_listed_as_unsupported():
    refused = numbers(NOT_SERVED.partition("## Limits")[0])
    assert refused & load_handlers().keys() == set()
    assert refused | load_handlers().keys() == set(range(93))


def offered(bootstrap: str) -> dict[int, tuple[int, int]]:
    """What it says of itself to a client."""
    with RawClient(bootstrap) as raw:
        answer = raw.call(18, 4, client_software_name="test", client_software_version="1")
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


@pytest.mark.kafka
def test_what_kafka_offers_is_offered_or_listed(kafka_broker: KafkaCluster, mainstem_log: EmbeddedLog) -> None:
    """In the same versions, and nothing beyond them."""
    kafka, ours = offered(kafka_broker.bootstrap), offered(mainstem_log.bootstrap)
    refused = numbers(NOT_SERVED.partition("## Limits")[0])
    assert {key for key in kafka if key not in ours} <= refused
    assert ours.keys() <= kafka.keys()
    names = {int(key): name for key, name in re.findall(r"\| (\d+) \| (\w+) \|", SERVED)}
    for key, (first, last) in ours.items():
        if kafka[key] != (first, last):
            assert kafka[key][0] == first
            assert f"\n- {names[key]} {last + 1}–{kafka[key][1]} is " in NOT_SERVED, f"{names[key]}: {kafka[key]}"


def test_a_topic_setting_has_an_effect_or_is_listed_as_one_that_has_none():
    code = "\n".join(path.read_text() for path in sorted((PACKAGE / "log").glob("*.py")) if path.name != "config.py")
    limits = TEXT.partition("## Limits")[2]
    patterns = [name for name in re.findall(r"`([a-z.*]+)`", limits) if "." in name or name == "preallocate"]
    without_effect = {
        name.replace("_", ".")
        for name in TopicConfig.__struct_fields__
        if not re.search(rf"config\.{name}\b", code) and name not in ("cleanup_policy", "flush_ms")
    }
    listed = {name for name in without_effect if any(fnmatch(name, pattern) for pattern in patterns)}
    assert without_effect == listed
