"""Who is let in: so many clients at a time, in all and of one address, those in the handshake of TLS included."""

from collections import Counter
from collections.abc import Callable

from mainstem.broker.errors import TooManyConnections


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
        self._all = 0

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
        if self._all >= self._most and not make_room(host):
            raise TooManyConnections(f"{self._most} connections are open (max_connections, and what ulimit -n leaves)")
        self._of[host] += 1
        self._all += 1

    def leave(self, host: str) -> None:
        """Its socket is gone."""
        self._all -= 1
        self._of[host] -= 1
        if not self._of[host]:
            del self._of[host]
