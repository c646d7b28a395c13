from mainstem.core.errors import CorruptData, MainstemError, Retriable, Superseded, UserError


def test_every_error_hangs_from_one_tree_and_carries_its_hint():
    for kind in (UserError, Superseded, Retriable, CorruptData):
        error = kind("expected a, found b", hint="do c")
        assert isinstance(error, MainstemError)
        assert (str(error), error.hint) == ("expected a, found b", "do c")
