"""A frame that arrives in parts: whole in the end, and with little more room than what was sent."""

from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.arriving_frame import FIRST_ROOM, ArrivingFrame


@given(st.integers(2, 200_000), st.data())
def test_however_it_comes_it_is_whole_in_the_end(size, data):
    content = bytes(range(256)) * (size // 256 + 1)
    begun = data.draw(st.integers(0, size - 1))
    arriving = ArrivingFrame(size, memoryview(content)[:begun], data.draw(st.integers(0, begun)))
    while arriving.missing:
        least, most = arriving.least_growth, arriving.most_growth
        assert len(arriving.room) <= max(4 * arriving.filled, arriving.filled + FIRST_ROOM)
        if least:
            assert least <= most
            arriving.grow(data.draw(st.integers(least, most)))
        free = arriving.free
        taken = data.draw(st.integers(1, len(free)))
        free[:taken] = content[arriving.filled : arriving.filled + taken]
        arriving.filled += taken
    assert arriving.room == content[:size]


def test_what_is_announced_gets_room_for_what_was_sent():
    arriving = ArrivingFrame(100_000_000, memoryview(b"x"), 0)
    assert (len(arriving.room), arriving.missing, arriving.least_growth) == (1 + FIRST_ROOM, 99_999_999, 0)
    arriving.filled = len(arriving.room)
    assert (arriving.least_growth, arriving.most_growth) == (FIRST_ROOM, 3 * len(arriving.room))
