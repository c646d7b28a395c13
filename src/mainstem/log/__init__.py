"""KEEP: segments, indexes, recovery, retention, compaction, producer state. Files only; knows no Kafka request."""

from mainstem.log.answers import AppendResult
from mainstem.log.config import LogConfig, TopicConfig
from mainstem.log.directory import LogDirectory
from mainstem.log.disk import Disk, SystemDisk
from mainstem.log.errors import (
    BatchTooLarge,
    CoordinatorFenced,
    CorruptFile,
    CorruptSegment,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTopicConfig,
    InvalidTransactionState,
    LogDirectoryInUse,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RefusedBatch,
    StorageError,
)
from mainstem.log.file_slice import FileSlice
from mainstem.log.index import AbortedTransaction
from mainstem.log.partition import PartitionLog, ReadResult
from mainstem.log.producers import Producer
from mainstem.log.reading import OffsetAndTimestamp
from mainstem.log.threads import SWITCH_SECONDS

__all__ = [
    "SWITCH_SECONDS",
    "AbortedTransaction",
    "AppendResult",
    "BatchTooLarge",
    "CoordinatorFenced",
    "CorruptFile",
    "CorruptSegment",
    "Disk",
    "FileSlice",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidTimestamp",
    "InvalidTopicConfig",
    "InvalidTransactionState",
    "LogConfig",
    "LogDirectory",
    "LogDirectoryInUse",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionLog",
    "Producer",
    "ReadResult",
    "RefusedBatch",
    "StorageError",
    "SystemDisk",
    "TopicConfig",
]
