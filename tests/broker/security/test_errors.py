"""What security refuses has Kafka's codes."""

import pytest

from mainstem.broker.security.errors import AuthenticationFailed, NotAllowed
from mainstem.wire.errors import Code, code_of


def test_who_fails_has_the_code_of_sasl():
    assert code_of(AuthenticationFailed("wrong user or password")) is Code.sasl_authentication_failed


@pytest.mark.parametrize("code", [Code.topic_authorization_failed, Code.cluster_authorization_failed])
def test_what_is_not_allowed_has_the_code_of_its_kind_and_kafkas_words(code):
    error = NotAllowed(code)
    assert code_of(error) is code
    assert str(error).endswith("authorization failed.")
