"""Who is in the handshake of TLS, and who waits to begin it, on all listeners together. No I/O.

A handshake costs memory before anybody is known, so at most `MOST` are under way at a time; more clients wait, each for
the price of a descriptor. One that means it is done in well under a second once it has begun, also while all the others
are. So

- a client of an address that has fewer of them takes the place of the oldest of the address that has most;
- where somebody waits, one that is older than two seconds is cut off;
- of more than `MOST_WAITING`, the last of the address that has most of them is cut off.

Whoever opens connections and says nothing keeps no other address out, and his own for two seconds with 128 of them, for
sixteen with as many as may wait.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, Protocol

from mainstem.core import Clock

MOST: Final = 128
MOST_WAITING: Final = 1_024
PATIENCE_SECONDS: Final = 2.0  # all of them take half a second of a processor with a key of 4,096 bits
_SECONDS_BETWEEN_LOOKS: Final = 0.2


class Arrival(Protocol):
    """A client that was accepted."""

    @property
    def host(self) -> str:
        """Its address."""
        ...

    @property
    def descriptor(self) -> int:
        """Of its socket."""
        ...

    def begin(self) -> None:
        """Begin its handshake."""
        ...

    def cut_off(self) -> None:
        """Close its socket, or have it closed where it has begun."""
        ...


class Handshakes:
    """Each client is said to `arrive` once and to `leave` when its handshake is over, for better or worse."""

    def __init__(self, clock: Clock, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._clock = clock
        self._call_later = call_later
        self._under_way: dict[str, dict[Arrival, float]] = {}  # by address, since when; the oldest first
        self._waiting: dict[str, dict[Arrival, float]] = {}
        self._looking = False

    def __iter__(self) -> Iterator[Arrival]:
        """All, under way or waiting."""
        return chain(*self._under_way.values(), *self._waiting.values())

    def arrive(self, arrival: Arrival) -> None:
        """It begins, at once or later, or is cut off."""
        if _count(self._under_way) < MOST or self._take_place(arrival.host):
            self._begin(arrival)
            return
        self._waiting.setdefault(arrival.host, {})[arrival] = self._clock.monotonic()
        if _count(self._waiting) > MOST_WAITING:
            self._cut_off_last_that_waits()
        self._look_later()

    def leave(self, arrival: Arrival) -> None:
        """Its handshake is over; of one that was cut off it is known."""
        self._forget(arrival)
        self._begin_next()

    def make_room(self, host: str) -> bool:
        """Cut off one of those that wait, or else one under way: of an address that has more than `host`, or one that
        has had its time; whether there was one.
        """
        if self._waiting:
            self._cut_off_last_that_waits()
            return True
        if self._take_place(host):
            return True
        old = self._old()
        if old:
            self._cut_off(old[0])
        return bool(old)

    def _take_place(self, host: str) -> bool:
        """Cut off the oldest of the address that has most under way, if that has more than `host`; whether it has."""
        most = _most(self._under_way)
        is_greedier = len(self._under_way.get(host, ())) + 1 < len(most)
        if is_greedier:
            self._cut_off(next(iter(most)))
        return is_greedier

    def _cut_off_last_that_waits(self) -> None:
        self._cut_off(next(reversed(_most(self._waiting))))

    def _old(self) -> list[Arrival]:
        """Those under way that have had their time, the oldest first."""
        until = self._clock.monotonic() - PATIENCE_SECONDS
        under_way = chain(*(each.items() for each in self._under_way.values()))
        return [each for each, since in sorted(under_way, key=lambda each: each[1]) if since <= until]

    def close(self) -> None:
        """Cut all of them off."""
        for arrival in list(self):
            self._cut_off(arrival)

    def _begin(self, arrival: Arrival) -> None:
        self._under_way.setdefault(arrival.host, {})[arrival] = self._clock.monotonic()
        arrival.begin()

    def _begin_next(self) -> None:
        """Of those that wait, one of the address with the fewest under way, as long as there is room."""
        while self._waiting and _count(self._under_way) < MOST:
            host = min(self._waiting, key=lambda each: len(self._under_way.get(each, ())))
            arrival = next(iter(self._waiting[host]))
            self._forget(arrival)
            self._begin(arrival)

    def _cut_off(self, arrival: Arrival) -> None:
        self._forget(arrival)
        arrival.cut_off()

    def _forget(self, arrival: Arrival) -> None:
        for by_address in (self._under_way, self._waiting):
            of_one = by_address.get(arrival.host, {})
            if of_one.pop(arrival, None) is not None and not of_one:
                del by_address[arrival.host]

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._call_later(_SECONDS_BETWEEN_LOOKS, self._look)

    def _look(self) -> None:
        self._looking = False
        for arrival in self._old()[: _count(self._waiting)]:
            self._cut_off(arrival)
        self._begin_next()
        if self._waiting:
            self._look_later()


def _count(by_address: dict[str, dict[Arrival, float]]) -> int:
    return sum(map(len, by_address.values()))


def _most(by_address: dict[str, dict[Arrival, float]]) -> dict[Arrival, float]:
    return max(by_address.values(), key=len, default={})
