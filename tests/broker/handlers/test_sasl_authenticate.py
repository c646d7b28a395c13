"""SaslAuthenticate where there is no SASL; with it: tests/broker/security/test_sasl.py."""

import pytest

from mainstem.wire.errors import Code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_without_sasl_it_is_an_illegal_state_and_the_connection_goes_on(raw, version):
    assert raw.call(36, version, auth_bytes=b"\0alice\0secret").error_code is Code.illegal_sasl_state
    assert raw.call(18, 0).error_code is Code.none
