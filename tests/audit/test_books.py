from hypothesis import given
from hypothesis import strategies as st

from mainstem.audit.books import Count, PartitionBooks, Verdict, WriterStatement, balance
from mainstem.client.reports import Report
from mainstem.core import TopicPartition

P = TopicPartition("orders", 0)


def books(hashes, *, control=0, aborted=0, compacted=0, at=()):
    data = Count(len(hashes), sum(hashes) % 2**64)
    end = len(hashes) + control + aborted + compacted
    running = {offset: Count(offset, sum(hashes[:offset]) % 2**64) for offset in at}
    return PartitionBooks(P, 0, end, data, control, aborted, compacted, running)


def wrote(hashes, writer="source"):
    return WriterStatement(writer, P, Count(len(hashes), sum(hashes) % 2**64))


def read(hashes, end=None, **parts):
    rows, end = len(hashes) - sum(parts.values()), len(hashes) if end is None else end
    return Report(reader="table", topic="orders", partition=0, end=end, rows=rows, hash=sum(hashes) % 2**64, **parts)


def verdicts(lines):
    return {line.tier: line.verdict for line in lines}


def test_equal_books_balance_in_every_tier():
    lines = balance([books([1, 2, 3])], [wrote([1, 2, 3])], [wrote([1, 2, 3])], [read([1, 2, 3])])
    assert verdicts(lines) == dict.fromkeys(["log", "writer", "reader"], Verdict.BALANCED)


def test_control_and_aborted_offsets_are_not_records():
    lines = balance([books([1, 2], control=2, aborted=5)], [wrote([1, 2])], [wrote([1, 2])], [read([1, 2], end=9)])
    assert set(verdicts(lines).values()) == {Verdict.BALANCED}


def test_offsets_that_nothing_accounts_for_are_wrong():
    book = PartitionBooks(P, 0, 4, Count(3, 6), 0, 0, 0)
    (line,) = balance([book], [], [], [])
    assert (line.verdict, line.missing) == (Verdict.WRONG, 1)


def test_what_several_writers_wrote_is_added_up():
    statements = [wrote([1], "a"), wrote([2, 3], "b")]
    lines = balance([books([1, 2, 3])], statements, statements, [])
    assert verdicts(lines)["writer"] == Verdict.BALANCED


def test_writing_while_counting_is_in_flight_not_wrong():
    lines = balance([books([1, 2])], [wrote([1])], [wrote([1, 2, 3])], [])
    assert verdicts(lines)["writer"] == Verdict.IN_FLIGHT


def test_a_reader_that_is_behind_is_in_flight():
    lines = balance([books([1, 2, 3], at=[2])], [], [], [read([1, 2])])
    assert verdicts(lines)["reader"] == Verdict.IN_FLIGHT


def test_quarantined_late_and_deleted_records_count_as_seen():
    lines = balance([books([1, 2, 3, 4])], [], [], [read([1, 2, 3, 4], quarantined=1, tombstones=1, late=1)])
    assert verdicts(lines)["reader"] == Verdict.BALANCED
    assert lines[-1].detail == "1 of them behind the watermark"


def test_a_reader_of_a_compacted_topic_has_bounds_too():
    for rows, verdict in [(0, "WRONG"), (1, "compacted"), (3, "compacted"), (4, "WRONG")]:
        lines = balance([books([3], compacted=2)], [], [], [read([1] * rows, end=3)])
        assert (rows, verdicts(lines)["reader"]) == (rows, verdict)
    behind = balance([books([3, 4], compacted=2, at=[1])], [], [], [read([1], end=1)])
    assert verdicts(behind)["reader"] == Verdict.IN_FLIGHT


def test_a_reader_that_has_said_nothing_has_a_line_where_there_are_records():
    known = {P: {"table", "search"}}
    lines = balance([books([1, 2])], [], [], [read([1, 2])], known)
    assert [(line.name, line.verdict) for line in lines if line.tier == "reader"] == [
        ("table", Verdict.BALANCED),
        ("search", Verdict.IN_FLIGHT),
    ]
    assert [line.tier for line in balance([books([])], [], [], [], known)] == ["log"]


def test_records_deleted_before_a_reader_came_to_them_are_its_loss():
    book = PartitionBooks(P, 5, 7, Count(2, 3), 0, 0, 0)
    (_, line) = balance([book], [], [], [read([1, 2])])
    assert (line.verdict, line.detail) == (Verdict.WRONG, "offsets 2 to 5 were deleted before it read them")


def test_compaction_leaves_a_bound_instead_of_an_equation():
    lines = balance([books([3], compacted=2)], [wrote([1, 2, 3])], [wrote([1, 2, 3])], [read([1, 2, 3])])
    assert verdicts(lines) == {"log": Verdict.BALANCED, "writer": Verdict.COMPACTED, "reader": Verdict.COMPACTED}
    too_many = balance([books([3], compacted=2)], [wrote([1] * 4)], [wrote([1] * 4)], [])
    assert verdicts(too_many)["writer"] == Verdict.WRONG


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), st.data())
def test_every_loss_duplicate_and_swap_shows(hashes, data):
    index = data.draw(st.integers(0, len(hashes) - 1))
    fault = data.draw(st.sampled_from(["lost", "doubled", "swapped"]))
    seen = list(hashes)
    if fault == "lost":
        del seen[index]
    elif fault == "doubled":
        seen.append(hashes[index])
    else:  # one record lost and another one too many: the count alone would not tell
        seen[index] = (hashes[index] + data.draw(st.integers(1, 2**64 - 1))) % 2**64
    lines = balance([books(hashes)], [wrote(seen)], [wrote(seen)], [read(seen, end=len(hashes))])
    assert verdicts(lines)["writer"] == Verdict.WRONG
    assert verdicts(lines)["reader"] == Verdict.WRONG
