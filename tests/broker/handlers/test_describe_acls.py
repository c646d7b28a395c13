"""DescribeAcls where there is no authorizer; with one: tests/broker/security/test_acls.py."""

import pytest

from mainstem.wire.errors import Code

EVERYTHING = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer_security_is_disabled(raw, version):
    answer = raw.call(29, version, **EVERYTHING)
    assert (answer.error_code, answer.resources) == (Code.security_disabled, ())
