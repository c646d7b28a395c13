import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.basis import (
    MAX_COOKIE_BYTES,
    MAX_TOKEN_BYTES,
    BadToken,
    Basis,
    OtherLog,
    answer_headers,
    furthest,
    given_basis,
    parse,
    reaches,
)

offsets = st.dictionaries(st.integers(0, 9), st.integers(0, 2**63 - 1), max_size=4)
positions = st.dictionaries(st.sampled_from(["flights", "fleet.planes", "a-b_c"]), offsets, max_size=3)


def moved(positions):
    """Without what is at 0, which says nothing."""
    left = {topic: {p: offset for p, offset in each.items() if offset} for topic, each in positions.items()}
    return {topic: each for topic, each in left.items() if each}


@given(positions)
def test_a_token_comes_back_as_what_it_was_made_of(positions):
    assert parse(Basis("log", positions).token) == Basis("log", moved(positions))


@given(positions, positions)
def test_the_sum_of_two_reaches_both_and_no_further(left, right):
    both = (Basis("log", left) + Basis("log", right)).positions
    assert both == furthest(right, left)
    for topic in {*left, *right}:
        assert reaches(both[topic], left.get(topic, {}))
        assert reaches(both[topic], right.get(topic, {}))
        for partition, offset in both[topic].items():
            assert offset in (left.get(topic, {}).get(partition), right.get(topic, {}).get(partition))


@given(positions, positions)
def test_one_reaches_the_other_if_their_sum_is_itself(left, right):
    reached = all(reaches(left.get(topic, {}), wanted) for topic, wanted in right.items())
    assert reached == (moved(furthest(left, right)) == moved(left))


def test_positions_of_two_logs_are_not_added():
    with pytest.raises(OtherLog, match="expected positions in log here, found some in there"):
        Basis("here", {"t": {0: 1}}) + Basis("there", {"t": {0: 1}})


@given(st.text(max_size=200))
def test_any_text_is_a_token_or_refused(text):
    for token in (text, f"ms1.{text}"):
        with contextlib.suppress(BadToken):
            assert parse(parse(token).token) == parse(token)


@given(positions.filter(moved), st.data())
def test_a_token_that_was_cut_is_refused(positions, data):
    token = Basis("0123456789abcdef", positions).token
    whole = parse(token)
    cut = token[: data.draw(st.integers(0, len(token) - 1))]
    try:
        found = parse(cut)
    except BadToken:
        return
    assert found == whole  # bits that only filled up the last letter


def test_a_token_of_a_negative_offset_is_refused():
    with pytest.raises(BadToken, match="expected offsets from 0"):
        parse(Basis("log", {"t": {0: -1}}).token)


def test_a_token_that_no_server_would_take_is_refused():
    with pytest.raises(BadToken, match="at most"):
        parse("ms1." + "A" * MAX_TOKEN_BYTES)


def test_the_header_counts_before_the_cookie():
    mine, other = Basis("log", {"t": {0: 5}}), Basis("log", {"t": {0: 9}})
    assert given_basis("log", mine.token, other.token) == mine
    assert given_basis("log", None, other.token) == other
    assert given_basis("log", None, None) == Basis("log")


def test_a_cookie_of_before_is_passed_over_a_header_is_not():
    token = Basis("of before", {"t": {0: 5}}).token
    assert given_basis("log", None, token) == Basis("log")
    assert given_basis("log", None, "rubbish") == Basis("log")
    with pytest.raises(OtherLog):
        given_basis("log", token, None)
    with pytest.raises(BadToken):
        given_basis("log", "rubbish", None)


def test_a_basis_too_large_for_a_cookie_is_in_the_header_alone():
    small = Basis("log", {"t": {0: 5}})
    assert answer_headers(small)["Set-Cookie"].startswith(f"mainstem_basis={small.token};")
    large = Basis("log", {f"topic.{n}": dict.fromkeys(range(8), 2**40) for n in range(100)})
    assert len(large.token) > MAX_COOKIE_BYTES
    assert answer_headers(large) == {"Mainstem-Basis": large.token}
