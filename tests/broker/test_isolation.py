import pytest

from mainstem.broker.isolation import READ_COMMITTED, READ_UNCOMMITTED, reads_committed
from mainstem.wire.errors import RequestError


def test_there_are_two_levels():
    assert (reads_committed(READ_UNCOMMITTED), reads_committed(READ_COMMITTED)) == (False, True)
    with pytest.raises(RequestError, match="isolation level 7, expected 0 or 1"):
        reads_committed(7)
