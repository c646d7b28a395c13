"""How every room below reaches the log: thin over aiokafka and confluent-kafka, and the shared-identity transaction."""

from mainstem.client.connection import Connection, Security
from mainstem.client.errors import BrokerUnavailable, Fenced, TopicMismatch, TransactionFailed, UnknownTopic

__all__ = [
    "BrokerUnavailable",
    "Connection",
    "Fenced",
    "Security",
    "TopicMismatch",
    "TransactionFailed",
    "UnknownTopic",
]
