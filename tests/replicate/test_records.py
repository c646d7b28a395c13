import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.replicate.errors import TooLarge, Unreadable
from mainstem.replicate.records import (
    LARGEST_BYTES,
    Admission,
    Answer,
    Barrier,
    Beat,
    Claim,
    Digest,
    Opening,
    Operation,
    Request,
    Result,
    decode,
    encode,
)

texts = st.text(max_size=20)
numbers = st.integers(0, 2**62)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
requests = st.none() | st.builds(Request, numbers, numbers)
answers = st.builds(Answer, values, texts, st.booleans())
records = st.one_of(
    st.builds(Claim, texts, texts),
    st.builds(Beat, numbers, numbers),
    st.builds(Result, numbers, numbers, answers, values, requests),
    st.builds(Admission, numbers, numbers),
    st.builds(Operation, texts, numbers, values, requests),
    st.builds(Opening, texts, numbers),
    st.builds(Barrier, texts, numbers),
    st.builds(Digest, texts, numbers, texts, st.lists(texts, max_size=3)),
)


@given(records)
def test_what_is_encoded_is_decoded(record):
    assert decode(0, encode(record)) == record


@given(st.binary(max_size=60))
def test_anything_else_is_refused(value):
    with pytest.raises(Unreadable, match="offset 7"):
        decode(7, value)


@pytest.mark.parametrize("value", [None, b"{}", b'{"type":"later"}', b'{"type":"beat","term":1}', b"[" * 100_000])
def test_what_no_replica_of_this_version_writes_is_refused(value):
    with pytest.raises(Unreadable, match="expected a record of a replicated service"):
        decode(7, value)


def test_a_field_more_is_passed_over():
    tree = msgspec.json.decode(encode(Beat(3, 4))) | {"later": 1}
    assert decode(0, msgspec.json.encode(tree)) == Beat(3, 4)


def test_a_record_that_is_too_large_is_not_written():
    with pytest.raises(TooLarge, match=str(LARGEST_BYTES)):
        encode(Operation("n1.1", 1, "x" * LARGEST_BYTES))
