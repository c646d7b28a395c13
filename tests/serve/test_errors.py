from mainstem.serve import errors
from tests.support.error_trees import check_tree


def test_the_tree_is_drawn_and_each_error_has_one_policy():
    check_tree(errors)
