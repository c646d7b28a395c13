"""The memory that requests hold, of all connections together: what has arrived of one, until its answer has left.

A connection asks before it reads on. Where the budget is used up nobody reads, but for

- small requests, as long as a quarter more is enough for them: who may not read at all cannot even say that it lives,
  or log in;
- one connection whose request has arrived in part: else parts of requests could fill the budget, and none would ever be
  whole. The next one's turn comes when that request has been answered: else one after the other would become whole, and
  all be held. It is that of the one that lacks least: who announces fifty megabytes and sends a byte now and then is
  waited for by his like alone.

Where room is wanted, a client that leaves a request unfinished is cut off: who has sent less than 256 KB of it for ten
seconds. Who waited meanwhile goes on; but where nobody at all went on, what waits goes too, since most of it may be as
dead, and each would take its ten seconds: but not those of whom much more is in their socket already. What a client
announces costs nothing; what it sends costs up to four times as much, as room for more.
"""

from collections.abc import Callable
from typing import Final, Protocol

from mainstem.core import Clock

PATIENCE_SECONDS: Final = 10.0
PROGRESS_BYTES: Final = 262_144
SMALL_BYTES: Final = 16_384
_SECONDS_BETWEEN_LOOKS: Final = 1.0
_MUCH: Final = 65_536  # in a socket; what its client sends beyond that may have no room there


class Reader(Protocol):
    """A connection."""

    @property
    def arrived_bytes(self) -> int:
        """Of the request that has arrived in part."""
        ...

    @property
    def missing_bytes(self) -> int:
        """Of the same: what has been announced and has not arrived."""
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


def _would_go_on(reader: Reader) -> bool:
    return reader.unread_bytes >= min(reader.missing_bytes, _MUCH)


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
        self._waiting: dict[Reader, None] = {}
        self._favourite: Reader | None = None  # reads its request to the end, whatever is held
        self._small: set[Reader] = set()  # who may read on a small request, whatever is held
        self._arriving: dict[Reader, tuple[float, int]] = {}  # unfinished: since when it has had so many bytes
        self._looking = False

    def take(self, size: int) -> None:
        """So many bytes have arrived, or have room made for them."""
        self.held += size

    def give(self, size: int) -> None:
        """So many are free again."""
        self.held -= size
        if self._waiting and self.held < self.limit:
            self._wake()

    def room(self, reader: Reader, most: int) -> int:
        """How many bytes more, of `most`, may be held for what it has not sent yet."""
        return most if self._favourite is reader else min(most, max(self.limit - self.held, 0))

    def admits(self, reader: Reader, *, unfinished: bool, holds: int, needs: int = 0) -> bool:
        """May it read on? If not, it is told to look again. `unfinished`: a request has arrived in part; `holds`: bytes
        of the budget that are the reader's; `needs`: so many more, before it can.
        """
        if self._favourite is reader and not holds:
            self._dismiss()
        self._small.discard(reader)
        if self.held + max(needs, 1) <= self.limit:
            admitted = True
        elif holds < SMALL_BYTES and len(self._small) < self.limit // 4 // SMALL_BYTES:
            self._small.add(reader)
            admitted = True
        else:
            if unfinished and self._favourite is None:
                self._favourite = reader
            admitted = unfinished and self._favourite is reader
            self._look_later()
        goes_on = admitted and reader in self._waiting
        if admitted:
            self._waiting.pop(reader, None)
        else:
            self._waiting[reader] = None
        if not unfinished:
            self._arriving.pop(reader, None)
        elif goes_on or reader not in self._arriving:
            self._arriving[reader] = (self._clock.monotonic(), reader.arrived_bytes)
        return admitted

    def leave(self, reader: Reader) -> None:
        """The connection is gone, or does not want to read for now."""
        self._waiting.pop(reader, None)
        self._arriving.pop(reader, None)
        self._small.discard(reader)
        if self._favourite is reader:
            self._dismiss()

    def _dismiss(self) -> None:
        self._favourite = None
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for reader in sorted(waiting, key=lambda each: each.missing_bytes):
            self._call_soon(reader.look_again)

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._call_later(_SECONDS_BETWEEN_LOOKS, self._look)

    def _look(self) -> None:
        """Cut off who does not go on, as long as somebody wants the room."""
        self._looking = False
        if self.held < self.limit:
            return
        now = self._clock.monotonic()
        late, somebody_goes_on = [], False
        for reader, (since, had) in list(self._arriving.items()):
            has = reader.arrived_bytes
            if has - had >= PROGRESS_BYTES:
                self._arriving[reader] = (now, has)
                somebody_goes_on = True
            elif now - since >= PATIENCE_SECONDS:
                late.append((reader, reader in self._waiting))
        for reader, waits in late:
            if not (waits and (somebody_goes_on or _would_go_on(reader))):
                reader.abort()
        self._look_later()
