"""What an index cannot do or answer.

MainstemError
├── UserError
│   ├── BadQuery             the query is not one, or asks for what it may not
│   │   └── NotKept          as of a position whose records, or part of them, the index never had, or of a token from
│   │                        before the batches of jobs that are known
│   └── OtherShape           the directory holds an index of another kind or with other columns: build a new one
├── Retriable
│   ├── NotApplied           as of a position that the index has not reached
│   ├── IndexInUse           somebody else has the directory open
│   └── IndexUnavailable     the machine refuses room, memory or files: nothing was applied
└── CorruptData
    ├── UnfitChanges         rows that no index of this shape can hold: leave them out
    └── IndexDamaged         it cannot be opened, or its content contradicts itself: build a new one from the log
"""

from collections.abc import Mapping

from mainstem.core.errors import CorruptData, Retriable, UserError


class BadQuery(UserError):
    """The query cannot be answered as it stands: its syntax, a column that is not there, a limit."""


class NotKept(BadQuery):
    """A read as of a position before the first record that the index was built from, or of a token of which it is not
    known any more which position of what a job makes belongs to it.
    """


class OtherShape(UserError):
    """The directory is that of an index with other columns, or of another kind or version."""


class NotApplied(Retriable):
    """A read as of a position that the index has not applied yet."""


class IndexInUse(Retriable):
    """Somebody else has the directory open; after a crash, for as long as the old process lives."""


class IndexUnavailable(Retriable):
    """The machine refuses what the index needs, as room on the disk or another open file. Its content is as it was;
    open it again.
    """


class UnfitChanges(CorruptData):
    """Rows that an index of this shape cannot hold: a column that there is none for, a value of another type. Nothing
    was applied, and what was pending still is; the changes without these can be applied.

    Attributes:
        reasons: place in the changes that were given -> why, on one line; one or more.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(next(iter(reasons.values())))
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type["UnfitChanges"], tuple[dict[int, str]]]:
        return UnfitChanges, (self.reasons,)


class IndexDamaged(CorruptData):
    """Files are missing or cut short, or what is in them does not fit together."""
