"""CreateAcls where there is no authorizer; with one: tests/broker/security/test_acls.py."""

import pytest

from mainstem.wire.errors import Code


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer_security_is_disabled(raw, version):
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    answer = raw.call(30, version, creations=[acl, acl])
    assert [each.error_code for each in answer.results] == [Code.security_disabled] * 2
