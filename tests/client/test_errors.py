from mainstem.client import errors
from tests.support.error_trees import check_tree


def test_the_type_says_whether_a_later_try_may_succeed():
    check_tree(errors)


def test_who_has_only_lost_its_identity_does_not_stop_as_one_who_was_fenced():
    """Both end the transaction; the first may fence again, which tells."""
    assert issubclass(errors.IdentityLost, errors.TransactionFailed)
    assert not issubclass(errors.IdentityLost, errors.Fenced)
