"""What can go wrong between us and a broker.

MainstemError
├── UserError ── UnknownTopic, TopicMismatch, TopicRefused, RecordRefused, RecordsDeleted
└── Retriable
    ├── BrokerUnavailable    nobody answers, or not in time
    │   └── CommitUnknown    the transaction was or was not committed, and who commits cannot tell any more
    └── TransactionFailed    the transaction was or must be aborted; nothing of it is visible
        ├── TookTooLong      it was open for longer than its timeout, and the log has aborted it
        ├── IdentityLost     the log has forgotten the producer id, or a newer holder has another: to fence again tells
        └── Fenced           a newer holder of the same transactional id exists: stop, do not retry here
"""

from mainstem.core import Retriable, UserError


class UnknownTopic(UserError):
    """A topic that should exist does not."""


class TopicMismatch(UserError):
    """A topic exists with other partitions than were asked for."""


class TopicRefused(UserError):
    """The broker does not create this topic: an unknown setting, a value out of range, a rule of the cluster."""


class RecordRefused(UserError):
    """The broker will never take this record: too large, no key in a compacted topic, not allowed."""


class RecordsDeleted(UserError):
    """What was to be read is not there any more: retention was shorter than the reader was late."""


class BrokerUnavailable(Retriable):
    """No broker answered within the time that was given."""


class CommitUnknown(BrokerUnavailable):
    """The answer to a commit was lost, and when it was asked for again, a newer holder had the transactional id."""


class TransactionFailed(Retriable):
    """A transaction cannot be committed; it is aborted, or the broker aborts it, and nothing of it is ever visible."""


class TookTooLong(TransactionFailed):
    """The broker has aborted it for its age, unless a newer holder did; it was open for `seconds`."""

    def __init__(self, message: str, *, seconds: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class IdentityLost(TransactionFailed):
    """The transactional id has another producer id than ours, or none.

    It was not used for `transactional.id.expiration.ms` (7 days), and perhaps somebody has taken it since.
    """


class Fenced(TransactionFailed):
    """A newer holder of the transactional id took over; whoever gets this stops."""
