import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord
from mainstem.broker.transactions.producer_ids import (
    BLOCK,
    KEY,
    ProducerIds,
    decode_reserved,
    encode_key,
    encode_reserved,
)
from mainstem.broker.transactions.records import decode_key


class Store:
    """What is durable: the end of the last block."""

    def __init__(self):
        self.end = 0
        self.writes = 0

    async def reserve(self, end):
        await asyncio.sleep(0)
        self.end, self.writes = max(self.end, end), self.writes + 1


@given(st.integers(0, 2**63 - 1))
def test_reserved_round_trips(end):
    assert decode_reserved(encode_reserved(end)) == end


def test_the_key_is_of_a_kind_that_kafka_skips():
    assert encode_key() == KEY
    assert decode_key(KEY) is None


def test_a_cut_value_is_refused():
    with pytest.raises(CorruptCoordinatorRecord):
        decode_reserved(b"\0\0\1")


@given(st.lists(st.integers(1, 2 * BLOCK), max_size=4))
def test_ids_are_unique_over_crashes_and_reserved_before_they_are_given(lives):
    async def story():
        store, given_out = Store(), []
        for count in lives:
            ids = ProducerIds(store.end, store.reserve)
            for _ in range(count):
                await ids.ready()
                given_out.append(ids.take())
                assert given_out[-1] < store.end
        assert given_out == sorted(set(given_out))

    asyncio.run(story())


def test_many_who_wait_at_once_share_the_block():
    async def story():
        store = Store()
        ids = ProducerIds(0, store.reserve)

        async def one():
            await ids.ready()
            return ids.take()

        found = await asyncio.gather(*(one() for _ in range(20)))
        assert sorted(found) == list(range(20))
        assert store.end == BLOCK

    asyncio.run(story())
