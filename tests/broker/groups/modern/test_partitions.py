from uuid import uuid4

from mainstem.broker.groups.modern.partitions import (
    assignment_of,
    each,
    is_subset,
    overlap,
    owned_since,
    without_epochs,
)

T, U = uuid4(), uuid4()


def test_sets_of_partitions():
    found = assignment_of([(T, 1), (U, 0), (T, 0)])
    assert found == {T: {0, 1}, U: {0}}
    assert sorted(each(found)) == sorted([(T, 0), (T, 1), (U, 0)])
    assert owned_since(found, 5) == {T: {0: 5, 1: 5}, U: {0: 5}}
    assert without_epochs(owned_since(found, 5)) == found


def test_what_is_in_what():
    whole = {T: {0: 1, 1: 2}}
    assert is_subset({}, whole)
    assert is_subset({T: frozenset((0,))}, whole)
    assert not is_subset({T: frozenset((0, 2))}, whole)
    assert not is_subset({U: frozenset((0,))}, whole)
    assert overlap({T: frozenset((0, 2))}, whole)
    assert not overlap({T: frozenset((2,)), U: frozenset((0,))}, whole)
