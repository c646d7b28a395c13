from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from mainstem.core import CorruptData
from mainstem.log import SystemDisk, checkpoint
from mainstem.log.checkpoint import Checkpoint, PartitionState, SegmentState
from mainstem.log.errors import CorruptFile
from mainstem.log.index import AbortedTransaction, IndexState
from mainstem.log.producers import AppendedBatch, Producer

PATH = Path("checkpoint")
STATE = PartitionState(
    topic="orders",
    partition=3,
    topic_id="00" * 16,
    log_start_offset=5,
    log_end_offset=90,
    leader_epoch=2,
    epochs=[(0, 0), (2, 50)],
    segments=[
        SegmentState(0, 1_000, 90, 123, 40, 100, 7, IndexState(8, 99), IndexState(12, 98), (123, 40),
                     [AbortedTransaction(7, 1, 2, 3)])
    ],
    producers=[Producer(7, 1, (AppendedBatch(0, 3, 10, 13, 99),), 4, 80, 99)],
)  # fmt: skip


def encoded(**fields) -> bytes:
    partitions = [checkpoint.encode_partition(STATE)]
    return checkpoint.encode(Checkpoint(clean=True, generation=4, sequence=77, partitions=partitions, **fields))


def test_decode_gives_what_encode_was_given():
    found = checkpoint.decode(encoded(), PATH)
    assert (found.clean, found.generation, found.sequence) == (True, 4, 77)
    assert [checkpoint.decode_partition(raw) for raw in found.partitions] == [STATE]


def test_a_partition_that_did_not_change_is_written_as_it_was():
    raw = checkpoint.encode_partition(STATE)
    found = checkpoint.decode(checkpoint.encode(Checkpoint(False, 1, 1, [raw, raw])), PATH)
    again = checkpoint.encode(Checkpoint(False, 1, 1, found.partitions))
    assert again == checkpoint.encode(Checkpoint(False, 1, 1, [raw, raw]))


def test_it_is_saved_and_loaded(tmp_path):
    assert checkpoint.load(SystemDisk(), tmp_path) is None
    checkpoint.save(SystemDisk(), tmp_path, Checkpoint(False, 2, 3, []))
    assert checkpoint.load(SystemDisk(), tmp_path) == Checkpoint(False, 2, 3, [])


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_every_flipped_bit_is_found(byte, bit):
    data = bytearray(encoded())
    data[byte % len(data)] ^= 1 << bit
    with pytest.raises(CorruptFile):
        checkpoint.decode(bytes(data), PATH)


@given(st.integers(0, 10_000))
def test_every_cut_is_found(cut):
    data = encoded()
    with pytest.raises(CorruptFile, match="checkpoint: "):
        checkpoint.decode(data[: cut % len(data)], PATH)


@given(st.binary(max_size=60))
def test_random_bytes_raise_only_corrupt_data(data):
    with pytest.raises(CorruptData):
        checkpoint.decode(data, PATH)


def test_a_later_format_is_named(monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    data = encoded()
    monkeypatch.undo()
    with pytest.raises(CorruptFile, match="format 2, this program reads up to 1") as caught:
        checkpoint.decode(data, PATH)
    assert caught.value.hint == "use the newer program"


def test_a_field_that_an_older_program_did_not_write():
    older = msgspec.msgpack.encode(msgspec.to_builtins(STATE)[:9])
    assert checkpoint.decode_partition(msgspec.Raw(older)).cleaned_offset == 0
