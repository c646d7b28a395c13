"""Credentials by hand: each user for itself, and all that may be wrong of one."""

import uuid

from kio.schema.alter_user_scram_credentials.v0.request import ScramCredentialDeletion

from mainstem.wire.errors import Code


def upsertion(name, mechanism=1, iterations=4096):
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": b"x" * 32,
    }


def altered(raw, *upsertions, deletions=()):
    answer = raw.call(51, 0, upsertions=list(upsertions), deletions=list(deletions))
    return {each.user: each.error_code for each in answer.results}


def told(raw, user):
    (found,) = raw.call(50, 0, users=[{"name": user}]).results
    return [(each.mechanism, each.iterations) for each in found.credential_infos]


def test_a_user_with_an_error_is_not_changed_and_the_others_are(raw):
    good, bad = (f"u{uuid.uuid4().hex[:8]}" for _ in range(2))
    assert altered(raw, upsertion(good), upsertion(bad), upsertion(bad, 2, 100)) == {
        good: Code.none,
        bad: Code.unacceptable_credential,
    }
    assert told(raw, good) == [(1, 4096)]
    assert told(raw, bad) == []
    assert altered(raw, upsertion(good, 2, 5000)) == {good: Code.none}
    assert told(raw, good) == [(1, 4096), (2, 5000)]
    assert altered(raw, deletions=[{"name": good, "mechanism": 1}]) == {good: Code.none}
    assert told(raw, good) == [(2, 5000)]


def test_what_is_wrong_has_kafkas_code(raw):
    gone = {"name": "never", "mechanism": 1}
    assert altered(raw, deletions=[gone]) == {"never": Code.resource_not_found}
    assert altered(raw, upsertion("a"), deletions=[{"name": "a", "mechanism": 1}]) == {"a": Code.duplicate_resource}
    assert altered(raw, upsertion("a", 2), deletions=[{"name": "a", "mechanism": 1}]) == {"a": Code.duplicate_resource}
    assert altered(raw, upsertion("a"), upsertion("a")) == {"a": Code.duplicate_resource}
    assert altered(raw, upsertion("a") | {"salted_password": b""}) == {"a": Code.unacceptable_credential}
    assert altered(raw, upsertion("")) == {"": Code.unacceptable_credential}
    assert altered(raw, upsertion("a", 9)) == {"a": Code.unsupported_sasl_mechanism}
    assert altered(raw, upsertion("a", 1, 16385)) == {"a": Code.unacceptable_credential}


def test_no_deletion_is_compared_with_all_others(raw, monkeypatch):
    """Ten thousand in one request kept the loop for ten seconds."""
    compared = []
    monkeypatch.setattr(ScramCredentialDeletion, "__eq__", lambda *both: compared.append(both))
    users = [f"u{number}" for number in range(20)]
    deletions = [{"name": each, "mechanism": 1} for each in users]
    assert altered(raw, deletions=deletions) == dict.fromkeys(users, Code.resource_not_found)
    assert not compared
