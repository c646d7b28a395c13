import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.progress import Output
from mainstem.core import TopicPartition
from mainstem.process.sink_commit import TaskOutput
from mainstem.process.sink_task import by_target, from_row, hash_sum, header_lists, to_arrow


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200))
def test_the_rows_of_each_target_keep_their_order(targets):
    batch = pa.RecordBatch.from_pydict({"_target": pa.array(targets, pa.int32()), "at": pa.array(range(len(targets)))})
    found = {target: part.column("at").to_pylist() for target, part in by_target(batch)}
    assert found == {target: [at for at, other in enumerate(targets) if other == target] for target in set(targets)}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_hashes_are_added_modulo_two_to_the_64(hashes):
    assert hash_sum(pa.array(hashes, pa.int64())) == sum(number % 2**64 for number in hashes) % 2**64


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1))
def test_what_a_task_reports_arrives_at_the_driver(total, partition):
    output = TaskOutput(TopicPartition("t", partition), Output(5, 9, 5, total))
    (row,) = to_arrow([output]).to_pylist()
    assert from_row(row) == output


def test_headers_for_the_slow_path():
    column = pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], [], None])
    assert header_lists(column) == [[("a", b"1"), ("b", None)], [], []]
    assert header_lists(None) is None


def test_one_target_is_passed_on_as_it_is():
    batch = pa.RecordBatch.from_pydict({"_target": pa.array(np.full(10, 7, np.int32))})
    assert [(target, part is batch) for target, part in by_target(batch)] == [(7, True)]
