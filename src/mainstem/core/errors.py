"""The errors of all rooms hang from one tree; the type carries the policy.

    MainstemError            one line: what was expected, what was found, where; `hint` says what to do
    ├── UserError            input, a setting or a command is wrong: shown to the person, never retried
    │   └── Superseded       somebody newer does this work: to start it again would take it from them
    ├── Retriable            a later try of the same call may succeed: a leader moved, a server is down
    ├── CorruptData          bytes that do not check out: never skipped in silence
    └── (anything else)      a bug

Each room raises types of its own below these.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class MainstemError(Exception):
    """An error of ours. `str(error)` is one line; `hint`, where there is one, is the next step for a person."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@contextmanager
def hints_in_tracebacks() -> Iterator[None]:
    """Whoever lets an error of ours pass, as a test of his own does, reads its hint below the message."""
    try:
        yield
    except MainstemError as error:
        if error.hint:
            error.add_note(f"hint: {error.hint}")
        raise


class UserError(MainstemError):
    """What a person gave is wrong: a setting, an argument, a record, a project file."""


class Superseded(UserError):
    """Somebody newer has taken this work over; who was superseded must not begin again by itself."""


class Retriable(MainstemError):
    """The same call may succeed later; whoever holds the work retries it with back-off."""


class CorruptData(MainstemError):
    """Bytes fail their check (length, CRC, format): the data is not used, and somebody is told."""
