import pytest

from mainstem.broker.patterns import MOST_BYTES, BadPattern, whole_match


def test_names_match_as_a_whole():
    matches = whole_match("a.*|b")
    assert [matches(name) for name in ("a1", "xa1", "b", "bb")] == [True, False, True, False]


@pytest.mark.timeout(20)
def test_groups_within_each_other_cost_nothing():
    """One name took most of a second."""
    matches = whole_match("(" * 16_000 + "a" + ")" * 16_000)
    assert not any(matches(f"topic-{number}" * 20) for number in range(200))
    assert matches("a")


def test_what_is_none_is_told_in_one_line_however_long_it_is():
    for expression, reason in (("(" * 20_000, r"found '\(\(\(.*missing"), ("x" * (MOST_BYTES + 1), "found 32768")):
        with pytest.raises(BadPattern, match=reason) as refused:
            whole_match(expression)
        assert len(str(refused.value)) < 300
