from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.offsets import GroupOffsets
from mainstem.broker.groups.records import OffsetValue
from mainstem.core import TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
OTHER = TopicPartition("u", 0)


def value(number):
    return OffsetValue(number)


def test_a_commit_in_a_transaction_is_pending_until_its_end():
    offsets = GroupOffsets()
    offsets.put_pending(0, 7, "g", P, value(5), 1)
    assert offsets.get("g", P) is None
    assert offsets.is_unstable("g", P)
    assert not offsets.is_unstable("g", Q)
    assert not offsets.is_unstable("h", P)
    offsets.end(0, 7, commit=True)
    assert offsets.get("g", P) == value(5)
    assert not offsets.is_open("g")


def test_an_abort_drops_it():
    offsets = GroupOffsets()
    offsets.put("g", P, value(1), 0)
    offsets.put_pending(0, 7, "g", P, value(5), 1)
    offsets.end(0, 7, commit=False)
    assert offsets.get("g", P) == value(1)
    offsets.end(0, 7, commit=True)
    assert offsets.get("g", P) == value(1)


def test_the_end_concerns_one_partition_of_the_offsets_topic():
    """Two groups of one transaction may lie in two partitions, each with a marker of its own."""
    offsets = GroupOffsets()
    offsets.put_pending(0, 7, "g", P, value(5), 1)
    offsets.put_pending(1, 7, "h", P, value(6), 1)
    offsets.end(0, 7, commit=True)
    assert offsets.get("g", P) == value(5)
    assert offsets.is_unstable("h", P)


def test_a_tombstone_removes_what_came_before_it_only():
    offsets = GroupOffsets()
    offsets.put("g", P, value(1), 3)
    offsets.put_pending(0, 7, "g", Q, value(2), 4)
    offsets.remove("g", P, 2)
    offsets.remove("g", Q, 2)
    assert offsets.get("g", P) == value(1)
    assert offsets.is_unstable("g", Q)
    offsets.remove("g", P, 5)
    offsets.remove("g", Q, 5)
    assert offsets.get("g", P) is None
    assert not offsets.is_unstable("g", Q)
    assert offsets.is_open("g"), "the transaction itself is still open"


def test_offsets_of_a_topic_are_found_in_all_groups():
    offsets = GroupOffsets()
    offsets.put("g", P, value(1), 0)
    offsets.put("g", OTHER, value(1), 1)
    offsets.put_pending(0, 7, "h", Q, value(2), 2)
    assert sorted(offsets.of_topic("t")) == [("g", P), ("h", Q)]
    assert sorted(offsets.topics()) == ["t", "u"]
    assert set(offsets.groups()) == {"g", "h"}
    assert offsets.pending_of("h") == {Q}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from("gh"), st.sampled_from((P, Q, OTHER))),
        st.tuples(st.just("pending"), st.sampled_from("gh"), st.sampled_from((P, Q, OTHER)), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("remove"), st.sampled_from("gh"), st.sampled_from((P, Q, OTHER))),
    ),
    max_size=40,
)


@given(steps)
def test_the_latest_visible_record_wins_whatever_the_order(history):
    """Compared with looking through the whole history: the last record of a partition that counts is its offset."""
    offsets, records, ended = GroupOffsets(), [], {}
    generation = dict.fromkeys(range(3), 0)
    for at, step in enumerate(history):
        if step[0] == "commit":
            offsets.put(step[1], step[2], value(at), at)
            records.append((at, step[1], step[2], None))
        elif step[0] == "pending":
            offsets.put_pending(0, step[3], step[1], step[2], value(at), at)
            records.append((at, step[1], step[2], (step[3], generation[step[3]])))
        elif step[0] == "end":
            offsets.end(0, step[1], commit=step[2])
            ended[step[1], generation[step[1]]] = step[2]
            generation[step[1]] += 1
        else:
            offsets.remove(step[1], step[2], at)
            records = [each for each in records if each[1:3] != step[1:3]]
    for group in "gh":
        for partition in (P, Q, OTHER):
            visible = [
                at
                for at, owner, where, transaction in records
                if (owner, where) == (group, partition) and (transaction is None or ended.get(transaction) is True)
            ]
            expected = value(max(visible)) if visible else None
            assert offsets.get(group, partition) == expected
            unstable = any(
                (owner, where) == (group, partition) and transaction is not None and transaction not in ended
                for _, owner, where, transaction in records
            )
            assert offsets.is_unstable(group, partition) is unstable
            known = (group, partition) in set(offsets.of_topic(partition.topic))
            assert known is (expected is not None or unstable)
    known = {each.topic for group in "gh" for each in (*offsets.of_group(group), *offsets.pending_of(group))}
    assert offsets.topics() == known


def test_a_commit_on_its_way_to_the_disk_is_known_until_the_last_of_them_is_there():
    offsets = GroupOffsets()
    offsets.queue("g", [P, Q])
    offsets.queue("g", {P: value(5)})
    offsets.unqueue("g", [P, Q])
    assert offsets.is_queued("g", P)
    assert offsets.pending_of("g") == {P}
    assert list(offsets.of_topic("t")) == [("g", P)]
    offsets.unqueue("g", [P])
    assert not offsets.is_queued("g", P)
    assert not list(offsets.groups())
