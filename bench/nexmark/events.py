"""The events of Nexmark (https://github.com/nexmark/nexmark): of fifty, one is a person, three are auctions, 46 bids.

Half of the bids go to the auction that is hot just then, three quarters come from the bidder that is; both change all
the time. The same seed gives the same events. The first number that a person or an auction has is 1000, as there.

Times are milliseconds since 1970. Events are numbered in the order in which they are written. One bid in ten is up to
`DISORDER_MS` older than its number says; who sells is there before, which the interval join of Quix rests on. Two bids
of one bidder are never exactly `GAP_MS` apart: engines do not agree whether that is one session. At the end each topic
has `CLOSERS` more events, `CLOSING_MS` later, some in each partition: they close the windows before them in every
engine.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]

PARTITIONS = 2
KINDS = ("person", "auction", "bid")
DISORDER_MS = 2_000
GAP_MS = WINDOW_MS = 10_000
CLOSING_MS, CLOSERS = 3_600_000, 16
BASE_MS = 1_767_225_600_000  # 2026-01-01
FIRST_ID = 1000
SIDE_KEYS = 10_000
"""Rows of the side input: an auction has that of its number modulo so many."""

_SEED = 20_260_101
_OF_FIFTY = {"person": 1, "auction": 3, "bid": 46}
_ACTIVE_PERSONS, _ACTIVE_AUCTIONS, _HOT = 1000, 100, 100
_RETURNS = 0.02  # of the bids come from a bidder of long ago, who has sessions of his own
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_STATES, _CITIES = ("OR", "ID", "CA", "WA"), ("Portland", "Boise", "Los Angeles", "Seattle")


class Kind(msgspec.Struct, frozen=True):
    """All events of one kind, a column for each number that a query uses, in the order in which they are written.

    Attributes:
        number: which of all events it is.
        at: its time.
        columns: `person` of persons; `auction` and `seller` of auctions; `auction`, `bidder` and `price` of bids.
    """

    number: Numbers
    at: Numbers
    columns: dict[str, Numbers]

    def __len__(self) -> int:
        return len(self.at)


class Events(msgspec.Struct, frozen=True):
    """What one run reads; `closing` is the time of the events that close the windows."""

    kinds: dict[str, Kind]
    closing: int


def generate(events: int, *, rate: int = 10_000, base_ms: int = BASE_MS, disorder_ms: int = DISORDER_MS) -> Events:
    """`events` events and the closing ones, `rate` of them in a second of their own time, beginning at `base_ms`."""
    draw = np.random.default_rng(_SEED)
    number = np.arange(events, dtype=np.int64)
    rest, epoch = number % 50, number // 50
    last_person = epoch  # counted from 0: that of this epoch is there, as it comes first
    last_auction = epoch * 3 + np.clip(rest - 1, 0, 2)
    time = base_ms + number * 1000 // rate
    closing = int(base_ms + events * 1000 // rate + CLOSING_MS)
    late = np.where(draw.random(events) < 0.1, draw.integers(0, disorder_ms + 1, events), 0)

    is_person, is_auction, is_bid = rest < 1, (rest >= 1) & (rest < 4), rest >= 4
    persons = {"person": FIRST_ID + last_person[is_person]}
    auctions = {
        "auction": FIRST_ID + last_auction[is_auction],
        "seller": _pick(draw, last_person[is_auction], 0.75, _ACTIVE_PERSONS),
    }
    bidder = _pick(draw, last_person[is_bid], 0.75, _ACTIVE_PERSONS)
    returns = draw.random(len(bidder)) < _RETURNS
    bidder[returns] = FIRST_ID + (draw.random(int(returns.sum())) * (last_person[is_bid][returns] + 1)).astype(np.int64)
    bids = {
        "auction": _pick(draw, last_auction[is_bid], 0.5, _ACTIVE_AUCTIONS),
        "bidder": bidder,
        "price": (10 ** (draw.random(len(bidder)) * 4) * 100).astype(np.int64),
    }
    bid_at = _apart(bids["bidder"], (time - late)[is_bid])
    kinds = {
        "person": _closed(number[is_person], time[is_person], persons, closing),
        "auction": _closed(number[is_auction], time[is_auction], auctions, closing),
        "bid": _closed(number[is_bid], bid_at, bids, closing),
    }
    return Events(kinds, closing)


def side_rows() -> list[tuple[int, str]]:
    """The side input: a number and a text for it."""
    return [(key, f"side {key * 7919 % SIDE_KEYS}") for key in range(SIDE_KEYS)]


def partition_of(key: Numbers) -> Numbers:
    """By a hash: what is hot is a multiple of a hundred, and by its lowest bit would always be in the first one."""
    return (key * 2_654_435_761 >> 16) % PARTITIONS


def rows(kind: str, events: Kind, first: int, end: int) -> Iterator[dict[str, int | str]]:
    """Events from `first` (included) to `end` (not) with all that Nexmark has of them, about 200 bytes as JSON."""
    make = _MAKE[kind]
    names = list(events.columns)
    columns = [events.columns[name][first:end].tolist() for name in names]
    for at, *values in zip(events.at[first:end].tolist(), *columns, strict=True):
        yield make(at, *values)


def _pick(draw: np.random.Generator, last: Numbers, hot_share: float, active: int) -> Numbers:
    """For each event the one of its kind's numbers that it is about: the hot one, or one of the last `active`."""
    hot = last // _HOT * _HOT
    reach = np.minimum(last + 1, active)
    cold = last - (draw.random(len(last)) * reach).astype(np.int64)
    return np.where(draw.random(len(last)) < hot_share, hot, cold) + FIRST_ID


def _apart(bidder: Numbers, at: Numbers) -> Numbers:
    """Times moved by a millisecond until no two neighbours of a bidder are exactly the gap of a session apart."""
    while True:
        order = np.lexsort((at, bidder))
        meets = (np.diff(bidder[order]) == 0) & (np.diff(at[order]) == GAP_MS)
        if not meets.any():
            return at
        at = at.copy()
        at[order[1:][meets]] -= 1


def _closed(number: Numbers, at: Numbers, columns: dict[str, Numbers], closing: int) -> Kind:
    """With the events that close windows, of numbers that nobody else has: some in each partition, by whatever hash."""
    closers = np.arange(1, 1 + CLOSERS, dtype=np.int64)
    columns = {name: np.concatenate([values, closers]) for name, values in columns.items()}
    return Kind(
        np.concatenate([number, np.full(CLOSERS, number[-1] + 1 if len(number) else 0)]),
        np.concatenate([at, np.full(CLOSERS, closing)]),
        columns,
    )


def _person(at: int, number: int) -> dict[str, int | str]:
    return {
        "person": number,
        "name": f"person {number}",
        "email": f"person.{number}@example.com",
        "card": f"{number:016d}",
        "city": _CITIES[number % 4],
        "state": _STATES[number % 4],
        "at": at,
        "extra": f"{number:040d}",
    }


def _auction(at: int, number: int, seller: int) -> dict[str, int | str]:
    return {
        "auction": number,
        "item": f"item {number}",
        "description": f"the thing that is sold as number {number}",
        "first_bid": number % 100,
        "reserve": number % 1000,
        "seller": seller,
        "category": 10 + number % 5,
        "at": at,
        "extra": f"{number:040d}",
    }


def _bid(at: int, auction: int, bidder: int, price: int) -> dict[str, int | str]:
    return {
        "auction": auction,
        "bidder": bidder,
        "price": price,
        "channel": _CHANNELS[auction & 3],
        "url": f"https://auctions.example.com/item?number={auction}",
        "at": at,
        "extra": f"{price:050d}",
    }


_MAKE: dict[str, Callable[..., dict[str, int | str]]] = {"person": _person, "auction": _auction, "bid": _bid}
