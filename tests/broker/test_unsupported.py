"""`docs/unsupported.md` says what the handlers do: no more and no less."""

import re
from fnmatch import fnmatch

import pytest

from mainstem.broker.dynamic_settings import TOPIC_DEFAULTS, WITHOUT_EFFECT
from mainstem.broker.handlers import load_handlers
from mainstem.embedded_log import EmbeddedLog
from mainstem.log import TopicConfig
from mainstem.wire.errors import Code
from tests.support.kafka_cluster import KafkaCluster
from tests.support.raw import RawClient, codes_of
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


@pytest.mark.parametrize("api_key", sorted(numbers(NOT_SERVED.partition("## Limits")[0])))
def test_what_is_not_served_is_not_offered_and_ends_the_connection(mainstem_log: EmbeddedLog, api_key: int) -> None:
    with RawClient(mainstem_log.bootstrap) as raw:
        assert api_key not in {each.api_key for each in raw.call(18, 0).api_keys}
        with pytest.raises(ConnectionError):
            raw.unknown_version(api_key, 0, answer_version=0)


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
        if not re.search(rf"config\.{name}\b", code)
        and name not in ("cleanup_policy", "flush_ms", "index_interval_bytes")
    }
    listed = {name for name in without_effect if any(fnmatch(name, pattern) for pattern in patterns)}
    assert without_effect == listed


def test_a_setting_of_the_broker_that_has_no_effect_is_listed_as_one():
    bullet = re.search(r"^- Settings of the broker come.*?(?=^- )", TEXT, re.MULTILINE | re.DOTALL)[0]
    patterns = re.findall(r"`([a-z.*]+)`", bullet.partition("Kafka's other dynamic")[2])
    assert [name for name in WITHOUT_EFFECT if not any(fnmatch(name, each) for each in patterns)] == []
    assert [each for each in patterns if not any(fnmatch(name, each) for name in WITHOUT_EFFECT)] == []
    assert [name for name in TOPIC_DEFAULTS if any(fnmatch(name, each) for each in patterns)] == []


@pytest.fixture
def share_group_state(mainstem_log: EmbeddedLog) -> None:
    """Its topic is made with the first state of a share group."""
    with RawClient(mainstem_log.bootstrap) as raw:
        raw.create_topic("read-by-a-share-group")
        asked = [{"topic_name": "read-by-a-share-group", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
        assert codes_of(raw.call(91, 0, group_id="a-share-group", topics=asked)) == set()


@pytest.mark.parametrize("client_id", ["raw", "__admin_client"])
@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
@pytest.mark.usefixtures("share_group_state")
def test_an_internal_topic_is_written_grown_and_deleted_by_nobody(
    mainstem_log: EmbeddedLog, topic: str, client_id: str
) -> None:
    with RawClient(mainstem_log.bootstrap, client_id=client_id) as raw:
        before = raw.call(3, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics[0]
        assert (before.error_code, before.is_internal) == (Code.none, True)
        assert raw.produce(topic, b"v") is Code.invalid_topic_exception
        records = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]
        grown = [{"name": topic, "count": len(before.partitions) + 1, "assignments": None}]
        for answer in (
            raw.call(21, 2, topics=records, timeout=9_000),
            raw.call(37, 3, topics=grown, timeout=9_000, validate_only=False),
            raw.call(20, 5, topic_names=[topic], timeout=9_000),
        ):
            assert codes_of(answer) == {Code.invalid_topic_exception}
        after = raw.call(3, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics[0]
        assert len(after.partitions) == len(before.partitions)
