"""What the log refuses, and what can break under it.

UserError
├── RefusedBatch             a batch that this topic does not take; it may name the records that are wrong
│   ├── InvalidRecord        no key on a compacted topic, a control batch, ...
│   └── InvalidTimestamp     its timestamps are further from the clock than the topic allows
├── BatchTooLarge            larger than `max.message.bytes`
├── InvalidTopicConfig       an unknown setting, or a value out of its range
└── LogDirectoryInUse        another process holds the data directory
Fencing and order (no policy of their own: the producer's protocol says what follows)
├── OffsetOutOfRange         before the log start offset or after the log end offset
├── OutOfOrderSequence       a batch of this producer is missing before this one
├── InvalidProducerEpoch     a newer instance of this producer has written
├── InvalidTransactionState  a plain batch inside the producer's transaction
└── CoordinatorFenced        a marker of an older transaction coordinator
Retriable
└── StorageError             the disk failed, or the partition is offline: nothing was acknowledged
CorruptData
├── CorruptSegment           bytes below the durable checkpoint do not check out
└── CorruptFile              a checkpoint, snapshot or journal does not check out
"""

from mainstem.core import CorruptData, MainstemError, Retriable, UserError


class RefusedBatch(UserError):
    """A batch that this topic does not take.

    `records` are those of its records that are wrong, with what each one lacks: (number in the batch from 0, text).
    Empty where it is the batch, or where nobody has looked at the records.
    """

    def __init__(self, message: str, *, records: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.records = records


class InvalidRecord(RefusedBatch):
    """A batch that this topic does not take, for what its header says or for a record in it."""


class InvalidTimestamp(RefusedBatch):
    """Timestamps further from the clock than `message.timestamp.before.max.ms` or `.after.max.ms` allow."""


class BatchTooLarge(UserError):
    """A batch larger than the topic's `max.message.bytes`."""


class InvalidTopicConfig(UserError):
    """An unknown topic setting, or a value out of its range."""


class LogDirectoryInUse(UserError):
    """Another process holds the data directory."""


class OffsetOutOfRange(MainstemError):
    """An offset before the log start offset or after the log end offset."""


class OutOfOrderSequence(MainstemError):
    """A batch whose sequence does not follow the producer's last one: one before it is missing."""


class InvalidProducerEpoch(MainstemError):
    """A batch or marker of an older producer epoch: a newer instance has written."""


class InvalidTransactionState(MainstemError):
    """A batch outside a transaction from a producer that has one open."""


class CoordinatorFenced(MainstemError):
    """A marker from a transaction coordinator that has been replaced."""


class StorageError(Retriable):
    """The disk failed or the partition is offline; the append was not acknowledged and the read gave nothing."""

    def again(self) -> "StorageError":
        """The same without where it was raised. One that is kept and raised to everybody who asks would keep, with each
        one's frames, what he had in hand: a producer's request, a part of a file.
        """
        return StorageError(str(self), hint=self.hint)


class CorruptSegment(CorruptData):
    """Bytes of a segment below the durable checkpoint do not check out: they were acknowledged once."""


class CorruptFile(CorruptData):
    """A checkpoint, snapshot, index or journal file does not check out."""
