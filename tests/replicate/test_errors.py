from mainstem.replicate import errors
from mainstem.replicate.errors import Diverged, NotPrimary
from tests.support.error_trees import check_tree


def test_the_docstring_draws_the_errors_below_their_policies() -> None:
    check_tree(errors)


def test_whoever_asks_the_wrong_node_is_told_the_right_one() -> None:
    assert NotPrimary("n2").primary == "n2"
    assert str(NotPrimary("n2")) == "the primary is n2"
    assert str(NotPrimary("")) == "no primary is known now"


def test_a_divergence_names_its_offset() -> None:
    assert Diverged("…", offset=7).offset == 7
