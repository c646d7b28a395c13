"""Clients that have not said who they are yet, on all listeners with SASL together. No I/O.

Each has its time for that (`authentication_timeout_ms`). Where all places of the log are taken meanwhile, the oldest of
the address that has most of them gives way to a client of an address that has fewer.
"""

from typing import Protocol


class Stranger(Protocol):
    """A connection."""

    @property
    def client_host(self) -> str:
        """The address that it comes from."""
        ...

    def cut_off(self) -> None:
        """Close its socket; another client has its place."""
        ...


class Strangers:
    """Each is said to `come` once, and to `go` once it is known or gone, however often."""

    def __init__(self) -> None:
        self._of: dict[str, dict[Stranger, None]] = {}  # by address; the oldest first

    def come(self, stranger: Stranger) -> None:
        self._of.setdefault(stranger.client_host, {})[stranger] = None

    def go(self, stranger: Stranger) -> None:
        of_one = self._of.get(stranger.client_host, {})
        if stranger in of_one:
            del of_one[stranger]
            if not of_one:
                del self._of[stranger.client_host]

    def make_room(self, host: str) -> bool:
        """Cut one off, of an address that has more of them than `host`; whether there was one."""
        most = max(self._of.values(), key=len, default={})
        if len(self._of.get(host, ())) + 1 >= len(most):
            return False
        stranger = next(iter(most))
        self.go(stranger)
        stranger.cut_off()
        return True
