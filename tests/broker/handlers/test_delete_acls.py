"""DeleteAcls where there is no authorizer; with one: tests/broker/security/test_acls.py."""

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_describe_acls import EVERYTHING


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer_security_is_disabled(raw, version):
    answer = raw.call(31, version, filters=[EVERYTHING, EVERYTHING])
    assert [each.error_code for each in answer.filter_results] == [Code.security_disabled] * 2
