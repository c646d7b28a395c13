"""What a producer is told when its transaction cannot go on."""

from mainstem.wire.errors import Code, RequestError


class TransactionError(RequestError):
    """A request about a transaction is refused; nothing has changed."""

    def __init__(self, code: Code, transactional_id: str, message: str) -> None:
        super().__init__(code, f"transactional id {transactional_id}: {message}")
        self.transactional_id = transactional_id


class ProducerFenced(TransactionError):
    """Another producer has taken over the transactional id, or the coordinator aborted the transaction: fatal.

    The coordinator's own requests say PRODUCER_FENCED; a produce says INVALID_PRODUCER_EPOCH (`StaleProducerEpoch`).
    """

    def __init__(self, transactional_id: str, message: str) -> None:
        super().__init__(Code.producer_fenced, transactional_id, message)


class StaleProducerEpoch(TransactionError):
    """The same as `ProducerFenced`, on the produce path."""

    def __init__(self, transactional_id: str, message: str) -> None:
        super().__init__(Code.invalid_producer_epoch, transactional_id, message)


class UnknownProducerMapping(TransactionError):
    """The transactional id is unknown, or its producer id is another one."""

    def __init__(self, transactional_id: str, message: str) -> None:
        super().__init__(Code.invalid_producer_id_mapping, transactional_id, message)


class InvalidTransactionState(TransactionError):
    """The request does not fit the state: a commit without a transaction, an abort of a committed one."""

    def __init__(self, transactional_id: str, message: str) -> None:
        super().__init__(Code.invalid_txn_state, transactional_id, message)


class PartitionNotInTransaction(TransactionError):
    """KIP-890: a batch for a partition that was not added; it would hang there for ever.

    Clients that are too old for TRANSACTION_ABORTABLE (Produce below 11, TxnOffsetCommit below 4) are told
    INVALID_TXN_STATE by the handlers.
    """

    def __init__(self, transactional_id: str, message: str) -> None:
        super().__init__(Code.transaction_abortable, transactional_id, message)


class TransactionEnding(TransactionError):
    """The transaction is being committed or aborted; the same request may be made again."""

    def __init__(self, transactional_id: str, message: str) -> None:
        super().__init__(Code.concurrent_transactions, transactional_id, message)


class CoordinatorUnavailable(TransactionError):
    """The coordinator could not store what it was about to answer, or does not know what it had: its log is offline."""

    def __init__(self, transactional_id: str, reason: BaseException | str) -> None:
        super().__init__(Code.coordinator_not_available, transactional_id, f"not stored: {reason}")
