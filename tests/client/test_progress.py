import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.append import append
from mainstem.client.internal import COMMITS
from mainstem.client.progress import Marker, Output, Written, add_written, merge_positions, read_marker
from mainstem.core import CorruptData

outputs = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.integers(0, 3), st.builds(Written, st.integers(0, 99), st.integers(0, 2**64 - 1)), max_size=4),
    max_size=2,
)


@given(st.lists(outputs, max_size=5))
def test_counts_and_hashes_add_up_over_batches(batches):
    total = {}
    for batch in batches:
        total = add_written(total, batch)
    for topic in ("a", "b"):
        for partition in range(4):
            parts = [batch[topic][partition] for batch in batches if partition in batch.get(topic, {})]
            if parts:
                expected = Written(sum(p.count for p in parts), sum(p.hash for p in parts) % 2**64)
                assert total[topic][partition] == expected


def test_a_partition_that_two_sources_read_counts_from_the_slower_one():
    positions = {"left": {"t": {0: 5, 1: 7}}, "right": {"t": {0: 3}, "u": {0: 1}}}
    assert merge_positions(positions) == {"t": {0: 3, 1: 7}, "u": {0: 1}}


def test_a_marker_comes_back_as_it_was_written(connection, name):
    marker = Marker(
        name, "v1", "id", 7, {"s": {"t": {0: 5}}}, {"o": {0: Output(0, 4, 5, 2**64 - 1)}}, {"o": {0: Written(5, 1)}}
    )
    append(connection, COMMITS, [(f"{name}@v1".encode(), msgspec.json.encode(marker))])
    assert read_marker(connection, name, "v1") == marker
    assert read_marker(connection, name, "v2") is None
    append(connection, COMMITS, [(f"{name}@v2".encode(), b"{}")])
    with pytest.raises(CorruptData, match=f"__mainstem.commits: key b'{name}@v2'"):
        read_marker(connection, name, "v2")
    append(connection, COMMITS, [(f"{name}@v2".encode(), None)])
