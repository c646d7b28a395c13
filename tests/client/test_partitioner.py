import tracemalloc

import pytest

from mainstem.client.partitioner import murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # From Kafka's own UtilsTest.testMurmur2, as unsigned numbers.
        (b"21", -973932308 % 2**32),
        (b"foobar", -790332482 % 2**32),
        (b"a-little-bit-long-string", -985981536 % 2**32),
        (b"a-little-bit-longer-string", -1486304829 % 2**32),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971 % 2**32),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key, expected):
    assert murmur2(key) == expected


def test_a_partition_is_always_in_range():
    assert {partition_for(b"key-%d" % number, 5) for number in range(200)} == {0, 1, 2, 3, 4}


def test_long_keys_are_not_kept():
    """The gateway kept 100,000 of any size, whatever its bodies were limited to."""
    tracemalloc.start()
    try:
        for number in range(20):
            partition_for(b"%d" % number + bytes(10_000), 5)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000
