import pytest

from mainstem.client.heartbeats import Statement, decode, encode, write_heartbeats
from mainstem.client.internal import HEARTBEATS
from mainstem.client.topics import end_offsets
from mainstem.core import CorruptData


@pytest.mark.parametrize(
    "heartbeat",
    [Statement("t", {0: 5, 1: 0}, 1_700_000_000_000, end=True), Statement("t", {}, 1, topic_id="x")],
)
def test_a_heartbeat_comes_back_as_what_it_was(heartbeat):
    assert decode(encode(heartbeat)) == heartbeat


@pytest.mark.parametrize("value", [b"", b"{}", b'{"topic": "t"}', b"\xff"])
def test_anything_else_is_corrupt(value):
    with pytest.raises(CorruptData):
        decode(value)


def test_heartbeats_are_durable_on_return(connection):
    before = end_offsets(connection, HEARTBEATS)[0]
    write_heartbeats(connection, [Statement("t", {0: 1}, 1), Statement("u", {0: 1}, 2)])
    assert end_offsets(connection, HEARTBEATS)[0] == before + 2
