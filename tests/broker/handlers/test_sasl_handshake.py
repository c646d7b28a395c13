"""SaslHandshake where there is no SASL; with it: tests/broker/security/test_sasl.py."""

import pytest

from mainstem.wire.errors import Code


@pytest.mark.parametrize("version", [0, 1])
def test_without_sasl_it_is_an_illegal_state_and_the_connection_goes_on(raw, version):
    answer = raw.call(17, version, mechanism="PLAIN")
    assert (answer.error_code, answer.mechanisms) == (Code.illegal_sasl_state, ())
    assert raw.call(18, 0).error_code is Code.none
