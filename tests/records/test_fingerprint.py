import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstem.records import fingerprint, fingerprint_sum

nullable = st.none() | st.binary(max_size=40)


# Computed by Spark 4.2.0: SELECT xxhash64(cast('key' AS binary), cast('value' AS binary)), and with NULLs.
@pytest.mark.parametrize(
    ("key", "value", "spark"),
    [
        (b"key", b"value", -5873319692121161356),
        (b"key", None, 7540006804610737327),
        (None, b"value", -7802671570583458559),
        (None, None, 42),
    ],
)
def test_spark_computes_the_same(key, value, spark):
    assert fingerprint(key, value) == spark % 2**64


@given(st.lists(st.tuples(nullable, nullable), max_size=10), st.randoms())
def test_the_sum_does_not_depend_on_the_order(pairs, random):
    shuffled = list(pairs)
    random.shuffle(shuffled)
    assert fingerprint_sum(pairs) == fingerprint_sum(shuffled)
    half = len(pairs) // 2
    assert fingerprint_sum(pairs) == (fingerprint_sum(pairs[:half]) + fingerprint_sum(pairs[half:])) % 2**64


@given(nullable, nullable)
def test_key_and_value_are_not_interchangeable(key, value):
    if key != value and key is not None and value is not None:
        assert fingerprint(key, value) != fingerprint(value, key)
