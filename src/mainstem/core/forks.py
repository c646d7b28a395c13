"""What a forked child must not keep: locks, and sockets at whose other end somebody waits for their end.

A fork has copies of all descriptors, and would hold them for as long as it lives (a worker of `multiprocessing`, say).
"""

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol


class Holder(Protocol):
    """It has open files that are this process's alone."""

    def descriptors(self) -> Iterable[int]:
        """Those that are open now."""
        ...


_holders: "weakref.WeakSet[Holder]" = weakref.WeakSet()


def keep_from_forks(holder: Holder) -> None:
    """A child that this process forks lets go of what the holder has open by then."""
    _holders.add(holder)


def _let_go() -> None:
    # Its objects still name these numbers: something harmless takes their place, not the next file that is opened.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for holder in list(_holders):
        for descriptor in holder.descriptors():
            with suppress(OSError):
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_let_go)
