"""Regular expressions that clients send. They are RE2's, as in Kafka, whose time grows with the text alone.

That takes two things more: nothing is captured (eight thousand groups within each other took seconds for one name), and
an expression is at most as long as a string of the protocol, since one of megabytes takes seconds to be read.

And a program does not end while a thread is in it: up to Python 3.13 one that comes back from C++ then aborts it.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Final

MOST_BYTES: Final = 32_767
_SHOWN: Final = 100
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
        BadPattern: it is none, or too long.
    """
    import re2  # 15 ms that a start without such a request does not take

    size = len(expression.encode(errors="replace"))
    if size > MOST_BYTES:
        raise BadPattern(f"a regular expression has at most {MOST_BYTES} bytes, found {size}")
    options = re2.Options()
    options.log_errors = False  # to stderr
    options.never_capture = True
    try:
        pattern = re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")  # it repeats the expression
        raise BadPattern(
            f"expected a regular expression of RE2, found {expression[:_SHOWN]!r}: {reason[:_SHOWN]}"
        ) from None

    def matches(name: str) -> bool:
        thread = threading.get_ident()
        _inside.add(thread)  # before it looks: who ends the program sets `_ends`, and looks then who is inside
        try:
            if not _ends.is_set():
                return pattern.fullmatch(name) is not None
        finally:
            _inside.discard(thread)
        while True:  # until the program has ended: of a log that is still open then, nobody waits for the answer
            time.sleep(_END_SECONDS)

    return matches


@atexit.register
def _end() -> None:
    _ends.set()
    until = time.monotonic() + _END_SECONDS
    while _inside and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


os.register_at_fork(after_in_child=_inside.clear)  # a fork has no threads
