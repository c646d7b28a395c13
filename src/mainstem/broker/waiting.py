"""A fetch that waits: until there is enough for it, its time is up, the log stops or its client has gone."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.broker.connection import Connection
    from mainstem.broker.server import Broker


class Waiting:
    """One wait, in a `with` that takes back what was arranged for it."""

    def __init__(self, broker: "Broker", connection: "Connection", deadline: float) -> None:
        """`deadline` is by the loop's clock, in seconds."""
        self.over = broker.loop.create_future()
        """To be awaited."""
        self._broker = broker
        self._connection = connection
        self._timer = broker.loop.call_at(deadline, self.end)

    def end(self) -> None:
        """There is enough; or nothing more comes."""
        if not self.over.done():
            self.over.set_result(None)

    def __enter__(self) -> "Waiting":
        self._broker.on_stop.add(self.end)
        self._connection.on_close.add(self.end)
        if self._connection.closed:  # it may have been before, and nobody is told again
            self.end()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._broker.on_stop.discard(self.end)
        self._connection.on_close.discard(self.end)
