"""The bit that flipped is found by the CRCs before and after."""

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.flipped_bit import flipped_bit


@given(st.binary(min_size=1, max_size=300), st.data())
def test_whichever_bit_it_was_is_found(whole, data):
    place = data.draw(st.integers(0, len(whole) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    flipped = bytearray(whole)
    flipped[place] ^= bit
    assert flipped_bit(crc32c(flipped) ^ crc32c(whole), len(whole)) == (place, bit)


@given(st.binary(min_size=4, max_size=300), st.data())
def test_two_bits_are_told_from_one(whole, data):
    places = data.draw(st.lists(st.integers(0, len(whole) * 8 - 1), min_size=2, max_size=2, unique=True))
    flipped = bytearray(whole)
    for place in places:
        flipped[place // 8] ^= 1 << place % 8
    assert flipped_bit(crc32c(flipped) ^ crc32c(whole), len(whole)) is None


def test_nothing_of_nothing():
    assert flipped_bit(0, 100) is None
    assert flipped_bit(1, 0) is None
