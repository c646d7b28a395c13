import pytest

from mainstem.core import CorruptData
from mainstem.records import CorruptBatch, CorruptRecords, UnknownCompression


@pytest.mark.parametrize("error", [CorruptBatch, CorruptRecords, UnknownCompression])
def test_all_of_them_are_corrupt_data(error):
    assert issubclass(error, CorruptData)
