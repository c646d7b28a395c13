import pytest

from mainstem.core import CorruptData, MainstemError, Retriable, UserError
from mainstem.log import errors


@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (errors.InvalidRecord, UserError),
        (errors.InvalidTimestamp, UserError),
        (errors.BatchTooLarge, UserError),
        (errors.InvalidTopicConfig, UserError),
        (errors.LogDirectoryInUse, UserError),
        (errors.StorageError, Retriable),
        (errors.CorruptSegment, CorruptData),
        (errors.CorruptFile, CorruptData),
        (errors.OffsetOutOfRange, MainstemError),
        (errors.OutOfOrderSequence, MainstemError),
        (errors.InvalidProducerEpoch, MainstemError),
        (errors.InvalidTransactionState, MainstemError),
        (errors.CoordinatorFenced, MainstemError),
    ],
)
def test_the_type_carries_the_policy(error, policy):
    assert issubclass(error, policy)
    assert error.__name__ in (errors.__doc__ or "")


def test_a_broken_order_of_a_producer_is_not_retried():
    assert not issubclass(errors.OutOfOrderSequence, Retriable)
