import contextlib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord, LaterVersion, Writer
from mainstem.broker.groups.consumer import records as consumer
from mainstem.broker.groups.modern import records
from mainstem.broker.groups.modern.records import TargetValue
from mainstem.broker.groups.records import ModernKey, decode_key, encode_key
from mainstem.broker.groups.share import records as share
from mainstem.broker.groups.streams import records as streams
from mainstem.core import CorruptData

KINDS = {**consumer.KINDS, **share.KINDS, **streams.KINDS}
MODULES = (consumer, share, streams)


def test_every_kind_of_key_has_a_version_of_its_own():
    assert set(KINDS.values()) == set(get_args(ModernKey))
    assert sum(len(module.KINDS) for module in MODULES) == len(KINDS)


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_keys_come_back(version, data):
    kind = KINDS[version]
    key = kind(*[data.draw(st.text(max_size=9)) for _ in kind.__struct_fields__])
    assert decode_key(encode_key(key)) == key
    with pytest.raises(CorruptCoordinatorRecord):
        decode_key(encode_key(key)[:-1] if key.group else encode_key(key)[:3])


@given(st.integers(0, 40), st.binary(max_size=60))
def test_random_bytes_raise_only_corrupt_data(version, data):
    with contextlib.suppress(CorruptData):
        decode_key(version.to_bytes(2, "big") + data)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("version", "error"), [(b"\0\1", LaterVersion), (b"\xff\xff", CorruptCoordinatorRecord)])
def test_values_of_versions_that_are_not_known(module, version, error):
    with pytest.raises(error, match="version 0 is known"):
        module.decode_value(module.TargetKey("g"), version + bytes(20))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("made_ms", [0, 1_700_000_000_000])
def test_a_target_is_written_alike_everywhere(module, made_ms):
    value = TargetValue(7, made_ms)
    written = module.encode_value(value)
    assert written.hex() == "000000000007" + ("00" if made_ms == 0 else "010008" + made_ms.to_bytes(8, "big").hex())
    assert module.decode_value(module.TargetKey("g"), written) == value


def epochs_of(tags, numbers, epoch):
    reader = records.value_reader(b"\0\0" + tags)
    return records.read_epochs(reader, numbers, epoch)


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.integers(-(2**31), 2**31 - 1), max_size=5))
def test_epochs_come_back(epochs):
    writer = Writer(None, flexible=True)
    records.write_epochs(writer, list(epochs.values()))
    assert epochs_of(writer.done(), list(epochs), -1) == epochs


def test_who_has_no_epochs_has_the_members():
    assert epochs_of(b"\0", [3, 1], 9) == {3: 9, 1: 9}


def test_epochs_that_are_too_few():
    writer = Writer(None, flexible=True)
    records.write_epochs(writer, [1])
    with pytest.raises(CorruptCoordinatorRecord, match="2 partitions or tasks with 1 epochs"):
        epochs_of(writer.done(), [3, 1], 9)
