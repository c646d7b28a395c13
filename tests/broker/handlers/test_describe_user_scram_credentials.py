"""What is told of users' credentials; the change of them: test_alter_user_scram_credentials.py."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_alter_user_scram_credentials import altered, upsertion


@pytest.mark.parametrize("everybody", [None, []])
def test_all_users_or_those_that_are_named(raw, everybody):
    user = f"u{uuid.uuid4().hex[:8]}"
    altered(raw, upsertion(user))
    assert user in [each.user for each in raw.call(50, 0, users=everybody).results]
    several = raw.call(50, 0, users=[{"name": user}, {"name": "nobody"}, {"name": "two"}, {"name": "two"}]).results
    assert [(each.user, each.error_code) for each in several] == [
        (user, Code.none),
        ("nobody", Code.resource_not_found),
        ("two", Code.duplicate_resource),
    ]
