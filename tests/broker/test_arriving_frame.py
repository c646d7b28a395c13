"""A frame that arrives in parts: whole in the end, and with little more room than what was sent."""

from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.arriving_frame import FIRST_GROWTH, ArrivingFrame


@given(st.integers(2, 5 * FIRST_GROWTH), st.integers(0, 65_536), st.data())
def test_however_it_comes_it_is_whole_in_the_end(size, begun, data):
    content = bytes(range(256)) * (size // 256 + 1)
    arriving = ArrivingFrame(size, memoryview(content)[: min(begun, size - 1)])
    while arriving.missing:
        if arriving.is_full:
            arriving.grow()
        assert len(arriving.room) <= max(4 * arriving.filled, FIRST_GROWTH)
        free = arriving.free
        taken = data.draw(st.integers(min(len(free), 100_000), len(free)))
        free[:taken] = content[arriving.filled : arriving.filled + taken]
        arriving.filled += taken
    assert arriving.room == content[:size]


def test_what_is_announced_gets_room_for_what_was_sent():
    arriving = ArrivingFrame(100_000_000, memoryview(b"x"))
    assert (len(arriving.room), arriving.missing, arriving.is_full) == (1, 99_999_999, True)
    arriving.grow()
    assert (len(arriving.room), arriving.is_full) == (FIRST_GROWTH, False)
