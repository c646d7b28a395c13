"""The memory that requests hold, of all connections together: from when they have room until their answer has left.

Each connection may hold `ALLOWANCE` bytes that nobody is asked for: so clients log in, say that they live and ask for
little, whatever others do. What goes beyond that is of the budget, and gets room before it is read, a request for all
of it, or waits for that: nobody holds what the one needs that it waits for.

Where there is no room, one request at a time comes in beyond the budget, in its turn: else one that is larger than the
budget never would. Addresses have it one after the other, of the clients of one address the one that has waited
longest. It ends with the answer, and who still waits for an answer to an earlier request has none.

Clients of one address have at most four times what they leave to others: four fifths, where they are alone. So whoever
fills it from one address leaves room for a client of another (the dynamic threshold of shared buffers: Choudhury and
Hahne, 1998).

Room that is wanted by the same address, or by one that has less, is for those that use it: who has sent less than
256 KB for ten seconds, or not the whole request within half a minute, is cut off. Who waits for more than an address
may have, or for an answer to a request before, does not want anybody's room.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, NamedTuple, Protocol

from mainstem.core import Clock

ALLOWANCE: Final = 131_072
PATIENCE_SECONDS: Final = 10.0
PROGRESS_BYTES: Final = 262_144
TURN_SECONDS: Final = 30.0
"""So long a request may take until it is whole, and one that has its turn until it is answered, where others wait."""
SHARE: Final = 4
"""Times what is left to others: so much is an address's."""
_SECONDS_BETWEEN_LOOKS: Final = 1.0


class Reader(Protocol):
    """A connection."""

    @property
    def client_host(self) -> str:
        """The address that it comes from."""
        ...

    @property
    def arrived_bytes(self) -> int:
        """Of the request that has arrived in part."""
        ...

    @property
    def is_held_up(self) -> bool:
        """It is not read from, and that is not its client's fault."""
        ...

    def look_again(self) -> None:
        """Ask again whether there is room."""
        ...

    def abort(self) -> None:
        """End at once: its client does not finish what it has begun, and others want the room."""
        ...


class _Wait(NamedTuple):
    size: int
    may_have_turn: bool


class _Arrival(NamedTuple):
    began: float
    since: float  # nothing much has come
    had: int


def _share(of_all: int, taken: int, own: int) -> int:
    """How much more an address may have that has `own` of the `taken`: with it at most `SHARE` times what is left, and
    something, where that is little.
    """
    return max(-((own - SHARE * (of_all - taken)) // (SHARE + 1)), 0)


class RequestMemory:
    """The budget, and who waits for it. No I/O."""

    def __init__(
        self,
        limit: int,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.limit = limit
        self.held = 0
        self.turn: Reader | None = None
        """Whose request may come in beyond the budget, or has."""
        self._beyond = 0  # bytes of it; 0: it has not asked yet
        self._turn_since = 0.0
        self._clock = clock
        self._call_soon = call_soon
        self._call_later = call_later
        self._held_by: Counter[str] = Counter()  # address
        self._waiting: dict[str, dict[Reader, _Wait]] = {}  # by address, that of the last turn last; the oldest first
        self._arriving: dict[Reader, _Arrival] = {}  # requests that have room
        self._next_look: float | None = None
        self._waking = False

    def take(self, size: int, host: str) -> None:
        """An address has so many bytes more."""
        self.held += size
        self._held_by[host] += size

    def give(self, size: int, host: str) -> None:
        """So many are free again."""
        self.held -= size
        self._held_by[host] -= size
        if not self._held_by[host]:
            del self._held_by[host]
        if self._waiting:
            self._wake_soon()

    def has_room(self, size: int, host: str) -> bool:
        """For so many bytes of an address."""
        return size <= self._free(host)

    def reserve(self, reader: Reader, size: int, *, may_have_turn: bool) -> bool:
        """Take so many bytes for what it reads next. If there is no room, it waits, and is told to look again."""
        if self.turn is reader and not self._beyond:
            self._beyond = size
        elif not self.has_room(size, reader.client_host):
            if not may_have_turn or self.turn is not None:
                self._wait(reader, _Wait(size, may_have_turn))
                return False
            self.turn, self._turn_since, self._beyond = reader, self._clock.monotonic(), size
        self.wait_no_more(reader)
        self.take(size, reader.client_host)
        return True

    def expect(self, reader: Reader) -> None:
        """It has room for the rest of a request that has arrived in part."""
        now = self._clock.monotonic()
        self._arriving[reader] = _Arrival(now, now, reader.arrived_bytes)
        if self._next_look is None:
            self._look_later()

    def arrived(self, reader: Reader) -> None:
        """Its request is whole."""
        self._arriving.pop(reader, None)

    def end_turn(self) -> None:
        """The request that came in beyond the budget is answered."""
        if self.turn is not None and self.turn.client_host in self._waiting:
            self._waiting[self.turn.client_host] = self._waiting.pop(self.turn.client_host)
        self.turn, self._beyond = None, 0
        for reader, wait in self._waits():
            if wait.may_have_turn:
                self.turn, self._turn_since = reader, self._clock.monotonic()
                self._call_soon(reader.look_again)
                return

    def wait_no_more(self, reader: Reader) -> None:
        """It does not want to read for now, or has room."""
        waiting = self._waiting.get(reader.client_host, {})
        if waiting.pop(reader, None) is not None and not waiting:
            del self._waiting[reader.client_host]
        if self.turn is reader and not self._beyond:
            self.end_turn()

    def leave(self, reader: Reader, *, at_work: int = 0) -> None:
        """The connection is gone, and has given back what it held but for so many bytes: with them its turn goes on."""
        self.wait_no_more(reader)
        self._arriving.pop(reader, None)
        if self.turn is reader:
            self._beyond = min(self._beyond, at_work)
            if not at_work:
                self.end_turn()

    def _free(self, host: str) -> int:
        """Bytes that an address may have in addition; what has the turn takes no room of others."""
        beyond = self._beyond if self.turn is not None and self.turn.client_host == host else 0
        return _share(self.limit, self.held - self._beyond, self._held_by[host] - beyond)

    def _wait(self, reader: Reader, wait: _Wait) -> None:
        self._waiting.setdefault(reader.client_host, {})[reader] = wait  # who waits already keeps its place
        if self._next_look is None:
            self._look_later()

    def _waits(self) -> Iterator[tuple[Reader, _Wait]]:
        return chain.from_iterable(waiting.items() for waiting in self._waiting.values())

    def _wake_soon(self) -> None:
        """Once in a turn of the loop, however much becomes free in it."""
        if not self._waking:
            self._waking = True
            self._call_soon(self._wake)

    def _wake(self) -> None:
        """Those for whom there is room now; they wait until they have asked."""
        self._waking = False
        for host, waiting in self._waiting.items():
            left = self._free(host)
            for reader, wait in waiting.items() if left else ():
                if wait.size <= left:
                    left -= wait.size
                    self._call_soon(reader.look_again)

    def _look_later(self) -> None:
        self._next_look = self._clock.monotonic() + _SECONDS_BETWEEN_LOOKS
        self._call_later(_SECONDS_BETWEEN_LOOKS, self._look)

    def _look(self) -> None:
        """Cut off who does not use the room that others want."""
        now, due = self._clock.monotonic(), self._next_look
        self._next_look = None
        if not (self._waiting or self._arriving):
            return
        if due is not None and now - due > _SECONDS_BETWEEN_LOOKS:  # the process stood still, and read nothing
            self._leave_out(now - due)
        for reader in self._unused(now):
            reader.abort()
        self._wake()
        self._look_later()

    def _unused(self, now: float) -> list[Reader]:
        """Those that are late with a request for which they have room, where others want that."""
        late = [reader for reader in list(self._arriving) if self._is_late(reader, now)]
        waits = [(reader, wait) for reader, wait in self._waits() if wait.may_have_turn]
        most = _share(self.limit, 0, 0)
        hosts = {reader.client_host for reader, wait in waits if wait.size <= most}
        least = min((self._held_by[host] for host in hosts), default=self.held)
        unused = [each for each in late if each.client_host in hosts or self._held_by[each.client_host] > least]
        if self.turn is not None and self.turn.is_held_up:
            self._turn_since = now
        is_over = self.turn in late or now - self._turn_since >= TURN_SECONDS
        if self.turn is not None and waits and is_over and self.turn not in unused:
            unused.append(self.turn)
        return unused

    def _is_late(self, reader: Reader, now: float) -> bool:
        arrival, has = self._arriving[reader], reader.arrived_bytes
        if reader.is_held_up:
            self._arriving[reader] = _Arrival(now, now, has)
            return False
        if has - arrival.had >= PROGRESS_BYTES:
            self._arriving[reader] = arrival = _Arrival(arrival.began, now, has)
        return now - arrival.since >= PATIENCE_SECONDS or now - arrival.began >= TURN_SECONDS

    def _leave_out(self, seconds: float) -> None:
        """So long nobody had a chance; what was before counts."""
        self._turn_since += seconds
        for reader, (began, since, had) in self._arriving.items():
            self._arriving[reader] = _Arrival(began + seconds, since + seconds, had)
