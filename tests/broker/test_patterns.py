import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import pytest

from mainstem.broker import patterns
from mainstem.broker.patterns import MOST_BYTES, BadPattern, PatternThreads, whole_match


def test_names_match_as_a_whole():
    matches = whole_match("a.*|b")
    assert [matches(name) for name in ("a1", "xa1", "b", "bb")] == [True, False, True, False]


@pytest.mark.timeout(20)
def test_groups_within_each_other_cost_nothing():
    """One name took most of a second, with more of them."""
    matches = whole_match("(" * 2_000 + "a" + ")" * 2_000)
    assert not any(matches(f"topic-{number}" * 20) for number in range(200))
    assert matches("a")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "expression",
    [
        "a{1,1000}" * 200,  # 1,800 bytes, and three minutes
        "(?:a{0,30}){0,30}" * 100,
        "a{1,50}" * 4_000,
        "x{1000,}" * 4_000,
        "b{3,1000}" * 30,  # 25 megabytes
        r"\pL" * 10_000,
        "a?" * 16_000,
        "(|" * 10_900 + ")" * 10_900,
        r"(|\)" * 5_400 + ")|" * 5_400,  # half a second
    ],
)
def test_nobody_else_waits_while_one_is_read(expression):
    """RE2 reads it with Python's lock: a heartbeat with one stopped the whole broker."""
    with pytest.raises(BadPattern, match=r"too large|at most (2000|10000|200) (groups|as the sum|classes)"):
        whole_match(expression)


def test_names_in_a_row_may_be_many():
    names = [f"orders.{number}" for number in range(2_500)]
    matches = whole_match("|".join(names))
    assert all(map(matches, names))
    assert not matches("orders.2500")
    assert whole_match("|".join(f"{name}-[0-9]{{4}}" for name in names[:150]))("orders.149-2026")


def test_none_is_kept_once_nobody_has_it():
    """The library kept the last 128, up to three megabytes each, long after those who sent them had gone."""

    def there():
        return sum(
            type(each).__module__ == "re2" and getattr(each, "pattern", None) == "kept[0-9]"
            for each in gc.get_objects()
        )

    matches = whole_match("kept[0-9]")
    assert there() == 1
    del matches
    assert there() == 0


def test_what_is_none_is_told_in_one_line_however_long_it_is():
    for expression, reason in (("(" * 900, r"found '\(\(\(.*missing"), ("x" * (MOST_BYTES + 1), "found 32768")):
        with pytest.raises(BadPattern, match=reason) as refused:
            whole_match(expression)
        assert len(str(refused.value)) < 300


@pytest.mark.timeout(120)
def test_a_program_ends_as_it_should_while_one_runs():
    """It was aborted: RE2 is in C++, and Python ends such a thread by force. A fork has no such thread."""
    program = """
        import os, sys, threading, time
        from concurrent.futures import CancelledError
        from contextlib import suppress
        from mainstem.broker.patterns import whole_match

        matches, begun = whole_match("(?:x*y*){0,500}z"), threading.Event()

        def match():
            begun.set()
            with suppress(CancelledError):
                while True:
                    matches("xyyx" * 250_000)

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


def with_threads(story):
    async def run():
        threads = PatternThreads("test")
        try:
            await story(threads)
        finally:
            await threads.close()

    asyncio.run(run())


def test_names_are_matched_in_threads():
    async def story(threads):
        assert await threads.matching("a.*|b", ["a1", "xa1", "b", "bb"]) == {"a1", "b"}
        assert await threads.matching("(a+)+b", ["a" * 249] * 100) == frozenset(), "it is slow elsewhere"
        await threads.check("a.*")
        for expression in ("(", "(?=a)", "*", "a" * (MOST_BYTES + 1)):
            for asked in (threads.check(expression), threads.matching(expression, ["a"])):
                with pytest.raises(BadPattern):
                    await asked

    with_threads(story)


@pytest.fixture
def a_name_a_turn(monkeypatch):
    monkeypatch.setattr(patterns, "_TURN_SECONDS", 0)
    monkeypatch.setattr(patterns, "_THREADS", 1)


def test_who_has_much_to_match_gives_others_their_turns(a_name_a_turn):
    """Two clients with a long pattern for long ids kept all others waiting, for as long as they liked."""

    async def story(threads):
        much = asyncio.ensure_future(threads.matching("x", ["x"] * 100_000))
        await asyncio.sleep(0)
        for _ in range(3):
            assert await threads.matching("[ab]", ["a", "b", "c"]) == {"a", "b"}
        assert not much.done()
        much.cancel()
        with suppress(asyncio.CancelledError):
            await much

    with_threads(story)


def test_what_goes_on_has_ended_when_they_are_closed(monkeypatch):
    """A process that ended meanwhile was aborted, now and then."""
    begun, ended = threading.Event(), []

    def slow(name):
        begun.set()
        time.sleep(0.05)
        ended.append(name)

    monkeypatch.setattr(patterns, "whole_match", lambda _: slow)

    async def story(threads):
        matched = asyncio.ensure_future(threads.matching("x", ["a", "b"]))
        await asyncio.to_thread(begun.wait)
        matched.cancel()
        await threads.close()
        assert ended == ["a"]

    with_threads(story)


def test_what_nobody_wants_any_more_is_not_gone_on_with(a_name_a_turn, monkeypatch):
    looked_at = []
    monkeypatch.setattr(patterns, "whole_match", lambda _: lambda name: looked_at.append(name) is None)

    async def story(threads):
        names = ["a", "b", "c", "d"]
        assert await threads.matching("x", names, lambda: len(looked_at) < 2) == {"a", "b"}
        assert await threads.matching("x", names, lambda: False) == frozenset()

    with_threads(story)
    assert looked_at == ["a", "b"]
