"""ListPartitionReassignments: there are none."""

from mainstem.wire.errors import Code


def test_nothing_moves(raw):
    answer = raw.call(46, 0, topics=None, timeout=1000)
    assert (answer.error_code, answer.topics) == (Code.none, ())
