from mainstem.broker.transactions import errors
from mainstem.wire.errors import Code, code_of


def test_each_error_has_its_code():
    codes = {
        kind.__name__: code_of(kind("t", "because"))
        for kind in (
            errors.ProducerFenced,
            errors.StaleProducerEpoch,
            errors.UnknownProducerMapping,
            errors.InvalidTransactionState,
            errors.PartitionNotInTransaction,
            errors.TransactionEnding,
        )
    }
    assert codes == {
        "ProducerFenced": Code.producer_fenced,
        "StaleProducerEpoch": Code.invalid_producer_epoch,
        "UnknownProducerMapping": Code.invalid_producer_id_mapping,
        "InvalidTransactionState": Code.invalid_txn_state,
        "PartitionNotInTransaction": Code.transaction_abortable,
        "TransactionEnding": Code.concurrent_transactions,
    }


def test_the_message_names_the_transactional_id():
    assert str(errors.ProducerFenced("shop", "gone")) == "transactional id shop: gone"
