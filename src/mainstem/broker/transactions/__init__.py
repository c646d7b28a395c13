"""Transactions: who may write under a transactional id, and that its batches in all partitions end alike."""

from mainstem.broker.transactions.coordinator import TransactionCoordinator
from mainstem.broker.transactions.storage import STATE_TOPIC
from mainstem.broker.transactions.transaction import Producer

__all__ = ["STATE_TOPIC", "Producer", "TransactionCoordinator"]
