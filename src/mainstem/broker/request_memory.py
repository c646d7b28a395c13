"""The memory that requests hold, of all connections together: what has arrived of one, until its answer has left.

A connection asks before it reads on. Where the budget is used up nobody reads, but for

- small requests, as long as a quarter more is enough for them: who may not read at all cannot even say that it lives,
  or log in;
- one connection whose request has arrived in part: else parts of requests could fill the budget, and none would ever be
  whole. The next one's turn comes when that request has been answered: else one after the other would become whole, and
  all be held. It is that of the one that lacks least: who announces fifty megabytes and sends a byte now and then is
  waited for by his like alone. None has it that still waits for an answer, which may take an hour: what it sends would
  be held for as long. Nor does one keep it whose request is whole and not answered half a minute later, where others
  want the room.

Clients of one address have at most four times what they leave to others, of the budget and of the places for small
requests: four fifths, where they are alone. So whoever fills it from one address leaves room for a client of another
(the dynamic threshold of shared buffers: Choudhury and Hahne, 1998), but for the first read of each connection, up to
64 KB, which nobody is asked for.

Where room is wanted, a client that leaves a request unfinished is cut off: who has sent less than 256 KB of it for ten
seconds. Who waited meanwhile goes on; but where nobody at all went on, what waits goes too, since most of it may be as
dead, and each would take its ten seconds: but not those of whom much more is in their socket already. What a client
announces costs nothing; what it sends costs up to four times as much, as room for more.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final, Protocol

from mainstem.core import Clock

PATIENCE_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0
"""So long a request may take that holds more than the budget, where others wait: clients wait no longer."""
PROGRESS_BYTES: Final = 262_144
SMALL_BYTES: Final = 16_384
SHARE: Final = 4
"""Times what is left to others: so much is an address's."""
_SECONDS_BETWEEN_LOOKS: Final = 1.0
_MUCH: Final = 65_536  # in a socket; what its client sends beyond that may have no room there


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
    def missing_bytes(self) -> int:
        """Of the same: what has been announced and has not arrived."""
        ...

    @property
    def answered(self) -> int:
        """How many of its requests have been answered."""
        ...

    @property
    def unread_bytes(self) -> int:
        """In its socket, while it may not read."""
        ...

    def look_again(self) -> None:
        """Ask again whether it may read."""
        ...

    def abort(self) -> None:
        """End at once: its client does not finish what it has begun, and others want the room."""
        ...


def _in_order(readers: Iterable[Reader]) -> list[Reader]:
    return sorted(readers, key=lambda each: each.missing_bytes)


def _would_go_on(reader: Reader) -> bool:
    return reader.unread_bytes >= min(reader.missing_bytes, _MUCH)


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
        self._clock = clock
        self._call_soon = call_soon
        self._call_later = call_later
        self._held_by: Counter[str] = Counter()  # address
        self._waiting: dict[str, dict[Reader, int]] = {}  # by address; for so many bytes
        self._favourite: Reader | None = None  # reads its request to the end, whatever is held
        self._answered_before = 0  # requests of the favourite's, before this one
        self._whole_since: float | None = None  # this one; it has no answer yet
        self._small: dict[Reader, None] = {}  # who may read on a small request, whatever is held
        self._small_by: Counter[str] = Counter()  # address
        self._arriving: dict[Reader, tuple[float, int]] = {}  # unfinished: since when it has had so many bytes
        self._looking = self._waking = False

    def take(self, size: int, host: str) -> None:
        """So many bytes have arrived from an address, or have room made for them."""
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

    def room(self, reader: Reader, most: int) -> int:
        """How many bytes more, of `most`, may be held for what it has not sent yet."""
        return most if self._has_turn(reader) else min(most, self._free(reader.client_host))

    def admits(self, reader: Reader, *, unfinished: bool, holds: int, needs: int = 0, asks: bool = False) -> bool:
        """May it read on? If not, it is told to look again. `unfinished`: a request has arrived in part; `holds`: bytes
        of the budget that are the reader's; `needs`: so many more, before it can; `asks`: a request before has no
        answer yet.
        """
        self._see(reader, unfinished=unfinished, holds=holds)
        self._leave_small(reader)
        if max(needs, 1) <= self._free(reader.client_host):
            admitted = True
        elif holds < SMALL_BYTES and self._has_small(reader.client_host):
            self._small[reader] = None
            self._small_by[reader.client_host] += 1
            admitted = True
        else:
            if unfinished and not asks and self._favourite is None:
                self._favourite, self._answered_before = reader, reader.answered
            admitted = unfinished and self._has_turn(reader)
            self._look_later()
        has_waited = self._wait_no_more(reader)
        if not admitted:
            self._waiting.setdefault(reader.client_host, {})[reader] = needs
        if not unfinished:
            self._arriving.pop(reader, None)
        elif (admitted and has_waited) or reader not in self._arriving:
            self._arriving[reader] = (self._clock.monotonic(), reader.arrived_bytes)
        return admitted

    def pause(self, reader: Reader, *, unfinished: bool, holds: int) -> None:
        """It does not want to read for now; `unfinished` and `holds` as for `admits`."""
        self._see(reader, unfinished=unfinished, holds=holds)
        self._wait_no_more(reader)
        self._leave_small(reader)
        if self._favourite is not reader:
            self._arriving.pop(reader, None)

    def leave(self, reader: Reader) -> None:
        """The connection is gone."""
        self._wait_no_more(reader)
        self._arriving.pop(reader, None)
        self._leave_small(reader)
        if self._favourite is reader:
            self._dismiss()

    def _see(self, reader: Reader, *, unfinished: bool, holds: int) -> None:
        """How far the favourite is: it is one until its request is answered, and reads no other one for that."""
        if self._favourite is not reader:
            return
        if not holds or reader.answered > self._answered_before:
            self._dismiss()
        elif not unfinished and self._whole_since is None:
            self._whole_since = self._clock.monotonic()

    def _has_turn(self, reader: Reader) -> bool:
        return self._favourite is reader and self._whole_since is None

    def _free(self, host: str) -> int:
        """Bytes that an address may have in addition."""
        return _share(self.limit, self.held, self._held_by[host])

    def _has_small(self, host: str) -> bool:
        return _share(self.limit // 4 // SMALL_BYTES, len(self._small), self._small_by[host]) > 0

    def _leave_small(self, reader: Reader) -> None:
        if reader in self._small:
            del self._small[reader]
            self._small_by[reader.client_host] -= 1
            if not self._small_by[reader.client_host]:
                del self._small_by[reader.client_host]

    def _wait_no_more(self, reader: Reader) -> bool:
        """Whether it has waited."""
        waiting = self._waiting.get(reader.client_host, {})
        has_waited = waiting.pop(reader, None) is not None
        if has_waited and not waiting:
            del self._waiting[reader.client_host]
        return has_waited

    def _dismiss(self) -> None:
        self._favourite = self._whole_since = None
        waiting, self._waiting = self._waiting, {}
        for reader in _in_order(chain(*waiting.values())):
            self._call_soon(reader.look_again)

    def _wake_soon(self) -> None:
        """Once in a turn of the loop, however much becomes free in it."""
        if not self._waking:
            self._waking = True
            self._call_soon(self._wake)

    def _wake(self) -> None:
        """Those for whom there is room now."""
        self._waking = False
        for host, waiting in list(self._waiting.items()):
            left = self._free(host)
            for reader in _in_order(waiting) if left else ():
                if left >= max(waiting[reader], 1):
                    left -= waiting[reader]
                    self._wait_no_more(reader)
                    self._call_soon(reader.look_again)

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._call_later(_SECONDS_BETWEEN_LOOKS, self._look)

    def _look(self) -> None:
        """Cut off who does not go on, as long as somebody wants the room, and it is not the room of others that is
        wanted.
        """
        self._looking = False
        if not self._waiting:
            return
        now, all_is_held = self._clock.monotonic(), self.held >= self.limit
        late, somebody_goes_on = [], False
        for reader, (since, had) in list(self._arriving.items()):
            if not (all_is_held or reader.client_host in self._waiting):
                continue
            has = reader.arrived_bytes
            if has - had >= PROGRESS_BYTES:
                self._arriving[reader] = (now, has)
                somebody_goes_on = True
            elif now - since >= PATIENCE_SECONDS:
                late.append((reader, reader in self._waiting.get(reader.client_host, {})))
        for reader, waits in late:
            if not (waits and (somebody_goes_on or _would_go_on(reader))):
                reader.abort()
        whole_since = self._whole_since
        if self._favourite is not None and whole_since is not None and now - whole_since >= ANSWER_SECONDS:
            self._favourite.abort()
        self._look_later()
