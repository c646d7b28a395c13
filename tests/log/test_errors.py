from mainstem.log import errors
from tests.support.error_trees import check_tree


def test_the_type_carries_the_policy():
    check_tree(errors)
