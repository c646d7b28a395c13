"""Regular expressions that clients send. They are RE2's, as in Kafka, whose time grows with the text alone.

That takes more: nothing is captured (eight thousand groups within each other took seconds for one name). And while RE2
reads an expression nobody else has Python's lock, for a time that grows with the square of what repetitions come to,
and of how deep groups lie: two kilobytes took minutes. So it may be as long as a string of the protocol, but groups,
counts and classes of Unicode are bounded, and where much is repeated so is what RE2 makes of it, more than elsewhere. A
tenth of a second is left, and a few megabytes.

Many names may still take minutes. So they are matched in threads of their own, without that lock, and whoever has much
to match gives others a turn after a few milliseconds, or after one name that takes longer.

And a program does not end while a thread is in it: up to Python 3.13 one that comes back from C++ then aborts it.
"""

import asyncio
import atexit
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Final

from mainstem.core.threads import LastingThreads

MOST_BYTES: Final = 32_767
_MOST_GROUPS: Final = 2_000
"""All of them may lie within each other; how deep they do, only who reads quotes, escapes and classes knows."""
_MOST_COUNTED: Final = 10_000
"""The sum of what is between braces: RE2 writes all of it out before it looks how much that is."""
_MOST_CLASSES: Final = 200
"""Of Unicode, each of which takes up to 0.2 ms to be read."""
_MOST_REPEATED: Final = 64
_MEMORY_BYTES: Final = 1 << 20
"""Of an expression that repeats little: some of it for its steps, the rest for what is found out while it matches."""
_LITTLE_MEMORY_BYTES: Final = 1 << 17
"""Of one that repeats more; 7,000 steps or more."""
_SHOWN: Final = 100
_THREADS: Final = 2
_TURN_SECONDS: Final = 0.02
_END_SECONDS: Final = 10
"""The longest expression for the longest name takes four."""
_POLL_SECONDS: Final = 0.01

_inside: set[int] = set()
"""The threads that RE2 has."""
_ends = threading.Event()


class BadPattern(ValueError):
    """It is no regular expression of RE2."""


def whole_match(expression: str) -> Callable[[str], bool]:
    """Whether the expression matches a name as a whole. What it needs may still be tenths of a second: ask in a thread.

    Raises:
        BadPattern: it is none, too long, or too much.

    What is returned raises CancelledError where the program ends: of a log that is still open then, nobody is to take
    that for an answer.
    """
    import re2  # 15 ms that a start without such a request does not take

    size = len(expression.encode(errors="replace"))
    if size > MOST_BYTES:
        raise BadPattern(f"a regular expression has at most {MOST_BYTES} bytes, found {size}")
    counted = sum(map(int, re.findall(r"([0-9]{1,9}),?\}", expression)))
    classes = expression.count(r"\p") + expression.count(r"\P")
    for what, found, most in (
        ("groups", expression.count("("), _MOST_GROUPS),
        ("as the sum of its counts", counted, _MOST_COUNTED),
        ("classes of Unicode", classes, _MOST_CLASSES),
    ):
        if found > most:
            raise BadPattern(f"a regular expression has at most {most} {what}, found {found}")
    options = re2.Options()
    options.log_errors = False  # to stderr
    options.never_capture = True
    repeats = counted or sum(map(expression.count, "?*+")) > _MOST_REPEATED
    options.max_mem = _LITTLE_MEMORY_BYTES if repeats else _MEMORY_BYTES
    try:
        pattern = re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")  # it repeats the expression
        raise BadPattern(
            f"expected a regular expression of RE2, found {expression[:_SHOWN]!r}: {reason[:_SHOWN]}"
        ) from None
    re2.purge()  # it would keep the last 128 that it was ever given, a megabyte each

    def matches(name: str) -> bool:
        thread = threading.get_ident()
        _inside.add(thread)  # before it looks: who ends the program sets `_ends`, and looks then who is inside
        try:
            if _ends.is_set():
                raise CancelledError
            return pattern.fullmatch(name) is not None
        finally:
            _inside.discard(thread)

    return matches


@atexit.register
def _end() -> None:
    _ends.set()
    until = time.monotonic() + _END_SECONDS
    while _inside and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


os.register_at_fork(after_in_child=_inside.clear)  # a fork has no threads


class PatternThreads:
    """Where expressions are matched, those of all who ask in turns."""

    def __init__(self, name: str) -> None:
        self._threads = LastingThreads(_THREADS, name)

    async def close(self) -> None:
        """Return when nothing goes on any more: a process that ends amid RE2's code is aborted."""
        await asyncio.to_thread(self._threads.shutdown)

    async def check(self, expression: str) -> None:
        """Return if it is a regular expression.

        Raises:
            BadPattern: it is none, or too long.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, whole_match, expression)

    async def matching(
        self, expression: str, names: Iterable[str], is_wanted: Callable[[], bool] = lambda: True
    ) -> frozenset[str]:
        """The names that it matches as a whole; `is_wanted` is asked before each turn, and what is not is in vain.

        Raises:
            BadPattern: it is no regular expression, or too long.
        """
        loop, left, found = asyncio.get_running_loop(), iter(names), set[str]()
        if not is_wanted():
            return frozenset()
        matches = await loop.run_in_executor(self._threads, whole_match, expression)
        goes_on = True
        while goes_on and is_wanted():
            more, goes_on = await loop.run_in_executor(self._threads, _turn, matches, left)
            found.update(more)
        return frozenset(found)


def _turn(matches: Callable[[str], bool], names: Iterator[str]) -> tuple[list[str], bool]:
    """What matches of the next names; and whether there may be more of them."""
    found, until = list[str](), time.monotonic() + _TURN_SECONDS
    for name in names:
        if matches(name):
            found.append(name)
        if time.monotonic() >= until:
            return found, True
    return found, False
