"""Kafka's error codes: one table, from the type of an error to its code. Handlers raise; dispatch translates.

The table names types instead of importing them, since this room knows neither the log nor the broker; a test checks
that every name is a type of ours. A subtype without a row of its own has the code of its nearest parent.
"""

from typing import Final

from mainstem.core.errors import CorruptData, MainstemError
from mainstem.wire.kafka import ErrorCode as Code

__all__ = ["CODES", "Code", "MalformedFrame", "RequestError", "code_of"]


class MalformedFrame(CorruptData):
    """Bytes that are no request of the Kafka protocol: cut short, too long, or a length or number out of range."""


class RequestError(MainstemError):
    """What was asked cannot be done, for a reason that Kafka has a code for and no room has a type for."""

    def __init__(self, code: Code, message: str = "") -> None:
        super().__init__(message or code.name.replace("_", " "))
        self.code = code


CODES: Final[dict[str, Code]] = {
    # wire
    "MalformedFrame": Code.invalid_request,
    # records and log
    "CorruptData": Code.corrupt_message,
    "OffsetOutOfRange": Code.offset_out_of_range,
    "OutOfOrderSequence": Code.out_of_order_sequence_number,
    "InvalidProducerEpoch": Code.invalid_producer_epoch,
    "InvalidRecord": Code.invalid_record,
    "InvalidTimestamp": Code.invalid_timestamp,
    "BatchTooLarge": Code.message_too_large,
    "InvalidTopicConfig": Code.invalid_config,
    "InvalidTransactionState": Code.invalid_txn_state,
    "CoordinatorFenced": Code.transaction_coordinator_fenced,
    "StorageError": Code.kafka_storage_error,
    "CorruptSegment": Code.kafka_storage_error,
    "CorruptFile": Code.kafka_storage_error,
    # broker
    "UnknownTopicOrPartition": Code.unknown_topic_or_partition,
    "UnknownTopicId": Code.unknown_topic_id,
    "TopicAlreadyExists": Code.topic_already_exists,
    "InvalidTopicName": Code.invalid_topic_exception,
    "InternalTopic": Code.invalid_topic_exception,
    "InvalidPartitions": Code.invalid_partitions,
    "AuthenticationFailed": Code.sasl_authentication_failed,
    # core: whatever may be retried, and bad input without a row of its own
    "BadSetting": Code.invalid_config,
    "Retriable": Code.coordinator_not_available,
    "UserError": Code.invalid_request,
}


def code_of(error: BaseException) -> Code:
    """The code that tells a client of `error`; an error nobody foresaw is UNKNOWN_SERVER_ERROR."""
    if isinstance(error, RequestError):
        return error.code
    for kind in type(error).__mro__:
        code = CODES.get(kind.__name__)
        if code is not None:
            return code
    return Code.unknown_server_error
