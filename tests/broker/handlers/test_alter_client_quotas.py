"""AlterClientQuotas by hand: each entity for itself, and nothing where only a check is asked for."""

import uuid

from mainstem.wire.errors import Code
from tests.broker.handlers.test_describe_client_quotas import described


def entry(user, **values):
    ops = [{"key": key, "value": value or 0, "remove": value is None} for key, value in values.items()]
    return {"entity": [{"entity_type": "user", "entity_name": user}], "ops": ops}


def altered(raw, *entries, check=False):
    answer = raw.call(49, 1, entries=list(entries), validate_only=check)
    return [each.error_code for each in answer.entries]


def test_each_entity_for_itself_and_a_null_takes_away(raw):
    good, bad = (f"u{uuid.uuid4().hex[:8]}" for _ in range(2))
    assert altered(raw, entry(good, producer_byte_rate=5e6), check=True) == [Code.none]
    assert described(raw, ("user", 0, good)) == []
    entries = entry(good, producer_byte_rate=5e6, consumer_byte_rate=7e6), entry(bad, nonsense=1), entry(good)
    assert altered(raw, *entries) == [Code.none, Code.invalid_request, Code.invalid_request]
    assert described(raw, ("user", 0, good)) == [{"producer_byte_rate": 5e6, "consumer_byte_rate": 7e6}]
    assert described(raw, ("user", 0, bad)) == []
    assert altered(raw, entry(good, producer_byte_rate=None)) == [Code.none]
    assert described(raw, ("user", 0, good)) == [{"consumer_byte_rate": 7e6}]
    assert altered(raw, entry(good, consumer_byte_rate=None)) == [Code.none]
    assert described(raw, ("user", 0, good)) == []


def test_a_quota_that_is_set_twice_is_refused(raw):
    user = f"u{uuid.uuid4().hex[:8]}"
    asked = entry(user, producer_byte_rate=5e6)
    assert altered(raw, asked | {"ops": asked["ops"] * 2}) == [Code.invalid_request]
    assert altered(raw, entry(user, producer_byte_rate=float("inf"))) == [Code.invalid_request]
    assert described(raw, ("user", 0, user)) == []


def test_two_clients_that_alter_one_entity_at_once_both_do(raw):
    with raw.another() as other:
        for _ in range(20):
            user = f"u{uuid.uuid4().hex[:8]}"
            asked = [entry(user, producer_byte_rate=5e6), entry(user, consumer_byte_rate=7e6)]
            for client, each in zip((raw, other), asked, strict=True):
                client.send(49, 1, entries=[each], validate_only=False)
            answers = [each.receive(49, 1).entries[0].error_code for each in (raw, other)]
            assert answers == [Code.none, Code.none]
            assert described(raw, ("user", 0, user)) == [{"producer_byte_rate": 5e6, "consumer_byte_rate": 7e6}]
            altered(raw, entry(user, producer_byte_rate=None, consumer_byte_rate=None))
