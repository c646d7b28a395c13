"""DescribeClientQuotas by hand: which quotas a filter means."""

import pytest

from mainstem.wire.errors import Code


def described(raw, *components, strict=False):
    asked = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    answer = raw.call(48, 1, components=asked, strict=strict)
    assert answer.error_code is Code.none
    return [{each.key: each.value for each in entry.values} for entry in answer.entries]


def test_which_quotas_a_filter_means(raw):
    entities = [[("user", "du")], [("user", None)], [("user", "du"), ("client-id", "dc")], [("ip", "203.0.113.9")]]
    for number, entity in enumerate(entities, 1):
        named = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        key = "connection_creation_rate" if entity[0][0] == "ip" else "producer_byte_rate"
        op = {"key": key, "value": number * 1e9, "remove": False}
        raw.call(49, 1, entries=[{"entity": named, "ops": [op]}], validate_only=False)

    def found(*components, strict=False):
        return sorted(round(next(iter(each.values())) / 1e9) for each in described(raw, *components, strict=strict))

    assert found() == [1, 2, 3, 4]
    assert found(strict=True) == []
    assert found(("user", 0, "du")) == [1, 3]
    assert found(("user", 0, "du"), strict=True) == [1]
    assert found(("user", 1, None)) == [2]
    assert found(("user", 2, None)) == [1, 2, 3]
    assert found(("user", 2, None), ("client-id", 0, "dc")) == [3]
    assert found(("ip", 2, None)) == [4]
    for entity in entities:
        named = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        key = "connection_creation_rate" if entity[0][0] == "ip" else "producer_byte_rate"
        op = {"key": key, "value": 0, "remove": True}
        raw.call(49, 1, entries=[{"entity": named, "ops": [op]}], validate_only=False)


def test_kinds_values_and_entities_come_in_kafkas_order(raw):
    """@platformatic/kafka's tests compare lists."""
    user, client = {"entity_type": "user", "entity_name": "ou"}, {"entity_type": "client-id", "entity_name": "oc"}
    names = ["producer_byte_rate", "consumer_byte_rate", "request_percentage"]
    ops = [{"key": name, "value": 1e9, "remove": False} for name in names]
    entries = [{"entity": [user, client], "ops": ops}, {"entity": [user], "ops": ops}]
    altered = raw.call(49, 1, entries=entries, validate_only=False).entries
    assert [[each.entity_type for each in one.entity] for one in altered] == [["client-id", "user"], ["user"]]
    asked = [{"entity_type": "user", "match_type": 0, "match": "ou"}]
    found = raw.call(48, 1, components=asked, strict=False).entries
    assert [[each.entity_type for each in one.entity] for one in found] == [["user"], ["client-id", "user"]]
    for one in found:
        assert [each.key for each in one.values] == ["consumer_byte_rate", "request_percentage", "producer_byte_rate"]
    gone = [{"key": name, "value": 0, "remove": True} for name in names]
    raw.call(49, 1, entries=[{**each, "ops": gone} for each in entries], validate_only=False)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("robot", 0, "r")], Code.unsupported_version),
        ([("user", 5, "u")], Code.invalid_request),
        ([("user", 0, None)], Code.invalid_request),
        ([("user", 1, "u")], Code.invalid_request),
        ([("user", 2, "u")], Code.invalid_request),
        ([("user", 0, "u"), ("user", 1, None)], Code.invalid_request),
        ([("ip", 0, "1.2.3.4"), ("user", 1, None)], Code.invalid_request),
    ],
)
def test_a_filter_that_is_none(raw, components, code):
    asked = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    answer = raw.call(48, 1, components=asked, strict=False)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message
