import subprocess
import sys
import textwrap

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


@pytest.mark.timeout(120)
def test_a_program_ends_as_it_should_while_one_runs():
    """It was aborted: RE2 is in C++, and Python ends such a thread by force. A fork has no such thread."""
    program = """
        import os, sys, threading, time
        from mainstem.broker.patterns import whole_match

        matches, begun = whole_match("(x*y*)*" * 3000 + "z"), threading.Event()

        def match():
            begun.set()
            while True:
                matches("xyyx")

        for _ in range(4):
            threading.Thread(target=match, daemon=True).start()
        begun.wait()
        time.sleep(0.1)
        before = time.monotonic()
        if os.fork() == 0:
            sys.exit()
        code, seconds = os.wait()[1], time.monotonic() - before
        print(code, "at once" if seconds < 5 else f"after {seconds} s")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("0 at once\n", "", 0)
