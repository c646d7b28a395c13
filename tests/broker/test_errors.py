"""What the broker refuses has a code that clients know."""

from mainstem.broker import errors
from mainstem.wire.errors import Code, code_of
from tests.support.error_trees import errors_of

NEVER_ANSWERED = {errors.AddressInUse, errors.TooManyConnections}
"""There is nobody to answer: no socket yet, or a connection that is closed at once."""


def test_every_refusal_has_a_code_of_its_own():
    """Without one a client would be told UNKNOWN_SERVER_ERROR, and try again."""
    answered = [kind for kind in errors_of(errors) if kind not in NEVER_ANSWERED]
    assert answered
    assert [kind for kind in answered if code_of(kind("x")) in (Code.unknown_server_error, Code.none)] == []
