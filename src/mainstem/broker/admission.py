"""Who is let in: so many clients at a time, in all and of one address, those in the handshake of TLS included.

A client may take the place of one that is cut off while the socket of that one is still open, for a turn or two of the
event loop: of few, as descriptors are counted on.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from mainstem.broker.errors import TooManyConnections

MOST_LEAVING: Final = 4
"""So many sockets may be open beyond the limit."""


class Admission:
    """Counts clients from when they are accepted until their socket is gone. No I/O.

    Args:
        most: clients.
        most_of_one: of them, of one address.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[str] = Counter()
        self._all = self._leaving = 0

    @property
    def is_turning_over(self) -> bool:
        """Nobody is to be accepted until some of those that were cut off are gone."""
        return self._leaving >= MOST_LEAVING

    def enter(self, host: str, make_room: Callable[[str], bool]) -> None:
        """A client comes, which is to `leave`.

        Args:
            host: its address.
            make_room: where all places are taken, has another one leave in its favour; whether there was one.

        Raises:
            TooManyConnections: it is one too many, and is not counted.
        """
        if self._of[host] >= self._most_of_one:
            raise TooManyConnections(f"{self._most_of_one} connections of one address (max_connections_per_ip)")
        if self._all - self._leaving >= self._most and not make_room(host):
            raise TooManyConnections(f"{self._most} connections are open (max_connections, and what ulimit -n leaves)")
        self._of[host] += 1
        self._all += 1

    def gives_way(self) -> None:
        """A client is cut off: its place is free, and its socket will soon be gone."""
        self._leaving += 1

    def leave(self, host: str, *, gave_way: bool = False) -> None:
        """Its socket is gone."""
        self._leaving -= gave_way
        self._all -= 1
        self._of[host] -= 1
        if not self._of[host]:
            del self._of[host]
