from mainstem.client.errors import (
    BrokerUnavailable,
    Fenced,
    IdentityLost,
    RecordRefused,
    TransactionFailed,
    UnknownTopic,
)
from mainstem.core import Retriable, UserError


def test_the_type_says_whether_a_later_try_may_succeed():
    assert issubclass(BrokerUnavailable, Retriable)
    assert issubclass(Fenced, TransactionFailed)
    assert issubclass(IdentityLost, TransactionFailed)
    assert not issubclass(IdentityLost, Fenced)
    assert issubclass(TransactionFailed, Retriable)
    assert issubclass(UnknownTopic, UserError)
    assert issubclass(RecordRefused, UserError)
