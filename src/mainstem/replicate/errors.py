"""What a replica cannot do, and what is known of the outcome.

MainstemError
├── UserError
│   ├── Refused              the service does not carry out the operation; the same on every node
│   ├── UnknownRequest       its client is not known (any more), or the request is older than what is remembered
│   ├── TooLarge             an operation, or what it changes, does not fit into a record
│   └── OtherLog             the log or the topic is not the one that this replica belongs to
├── Retriable
│   ├── NotPrimary           another node takes requests, or nobody knows now which one: it was not carried out
│   ├── NotApplied           it was not carried out and never will be
│   ├── OutcomeUnknown       not read back in time: it may be carried out later. Send it again as the same request
│   └── Stopped              this node has stopped
├── CorruptData
│   └── Unreadable           a record that no replica of this version writes: nobody can go on without reading it
├── Diverged                 a bug of the service: the same operations have led to another state than elsewhere
└── Broken                   a bug of the service: it has failed where it must not
"""

from mainstem.core.errors import CorruptData, MainstemError, Retriable, UserError


class Refused(UserError):
    """A service raises it in `execute`: the state stays as it was, and the message is the answer."""


class UnknownRequest(UserError):
    """Whether the request was carried out before cannot be known: it is not carried out now."""


class TooLarge(UserError):
    """It does not fit into a record."""


class OtherLog(UserError):
    """Offsets of this log mean something else."""


class NotPrimary(Retriable):
    """The request was not carried out here; `primary` is the node that takes requests, "" where nobody is known."""

    def __init__(self, primary: str) -> None:
        super().__init__(f"the primary is {primary}" if primary else "no primary is known now", hint="ask that node")
        self.primary = primary


class NotApplied(Retriable):
    """It is certain that the request was not carried out and never will be."""


class OutcomeUnknown(Retriable):
    """The request was on its way to the log when the time was over."""


class Stopped(Retriable):
    """The node follows the log no more."""


class Unreadable(CorruptData):
    """A record of the topic is none of ours."""


class Diverged(MainstemError):
    """`offset`: of the first operation whose answer differs, or -1 where only the states differ."""

    def __init__(self, message: str, *, offset: int = -1) -> None:
        super().__init__(
            message,
            hint="what the service does must follow from state and operation alone: no clock, chance or order of a set",
        )
        self.offset = offset


class Broken(MainstemError):
    """The service failed while it took over changes: what its state is now is not known."""
