from mainstem.core import Backoff


def test_pauses_double_up_to_the_longest():
    assert [Backoff(0.5, 3).pause(failures) for failures in (1, 2, 3, 4, 5)] == [0.5, 1, 2, 3, 3]


def test_a_first_pause_longer_than_the_longest_is_the_longest():
    assert Backoff(0.5, 0.05).pause(1) == 0.05


def test_what_fails_for_weeks_is_an_error_of_its_own_only():
    assert Backoff(0.001, 60).pause(1_000_000) == 60
