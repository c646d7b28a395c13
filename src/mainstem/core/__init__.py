"""The words every room uses: topic partitions, errors, clocks, settings, logging. Imports no other room."""

from mainstem.core.backoff import Backoff
from mainstem.core.clock import Clock, ManualClock, SystemClock
from mainstem.core.errors import CorruptData, MainstemError, Retriable, Superseded, UserError
from mainstem.core.types import LONGEST_TOPIC_NAME, TopicPartition, is_topic_name

__all__ = [
    "LONGEST_TOPIC_NAME",
    "Backoff",
    "Clock",
    "CorruptData",
    "MainstemError",
    "ManualClock",
    "Retriable",
    "Superseded",
    "SystemClock",
    "TopicPartition",
    "UserError",
    "is_topic_name",
]
