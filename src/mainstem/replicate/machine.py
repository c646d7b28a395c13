"""A service's state with what is known of its clients: a request is carried out once, however often it arrives.

A service says what an operation does (`execute`) apart from doing it (`assign`). So one service serves both ways to
replicate: every node executes and assigns, or one executes, and all assign what it logged.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import msgspec

from mainstem.core.prepared import prepared
from mainstem.replicate.errors import Refused
from mainstem.replicate.records import Answer, Request

MOST_CLIENTS = 10_000
WINDOW = 100
"""Answers that are kept of each client: as many of its requests may be under way at once."""


class Service(Protocol):
    """What is replicated. All values are JSON: dicts, lists, texts, numbers of 64 bits, true, false, null."""

    def execute(self, operation: Any) -> tuple[Any, Any]:
        """The answer to an operation, and the changes of the state; it changes nothing yet.

        Raises:
            Refused: it cannot be carried out; the message is the answer.
        """
        ...

    def assign(self, changes: Any) -> None:
        """Change the state as `execute` said. It must not fail: a primary answers that it did, and nothing is changed;
        where every node carries out the operations, all of them stop there until the service is mended.
        """
        ...

    def query(self, question: Any) -> Any:
        """The answer to a question, which changes nothing.

        Raises:
            Refused: there is none.
        """
        ...

    def dump(self) -> Any:
        """The whole state."""
        ...

    def load(self, dump: Any) -> None:
        """Take over a state that `dump` gave."""
        ...


class Effect(NamedTuple):
    """An operation that is carried out when it is committed."""

    answer: Answer
    changes: Any
    request: Request | None


class _Client(msgspec.Struct):
    newest: int = 0
    answers: dict[int, Answer] = {}


class MachineDump(msgspec.Struct, frozen=True):
    """A machine's whole state."""

    service: Any
    clients: list[tuple[int, int, dict[int, Answer]]]


class Machine:
    """The state of one replica.

    Args:
        service: makes the service in its first state.
        window: how many answers are kept of each client.
        most_clients: of more, the one that has not written for longest is forgotten.
    """

    def __init__(
        self, service: Callable[[], Service], *, window: int = WINDOW, most_clients: int = MOST_CLIENTS
    ) -> None:
        self.service = service()
        self._make, self._window, self._most_clients = service, window, most_clients
        self._clients: dict[int, _Client] = {}  # by when they last wrote

    def decide(self, operation: Any, request: Request | None) -> Effect | Answer:
        """What the operation does; or only an answer, where nothing is done: it was before, or nobody can know."""
        if request is not None:
            known = self._known(request)
            if known is not None:
                return known
        try:
            value, changes = self.service.execute(operation)
            msgspec.json.encode(value, order="sorted")  # else no node could keep the answer, and all would stop at it
        except Exception as error:
            return Effect(Answer(error=told(error)), None, request)
        return Effect(Answer(value), changes, request)

    def _known(self, request: Request) -> Answer | None:
        client = self._clients.get(request.client)
        if client is None:
            return Answer(error=f"client {request.client} is not known, or no more: open another", unknown=True)
        if request.number in client.answers:
            return client.answers[request.number]
        if not client.newest - self._window < request.number:
            return Answer(
                error=f"client {request.client}: request {request.number} is too old: the newest is {client.newest}, "
                f"and {self._window} are remembered",
                unknown=True,
            )
        return None

    def commit(self, effect: Effect) -> None:
        """Carry out what was decided, and remember the answer.

        Raises:
            Exception: the service failed in `assign`; what its state is now is not known.
        """
        if not effect.answer.error:
            self.service.assign(effect.changes)
        if effect.request is None:
            return
        # A primary decides ahead of what it has read back: by now others may have pushed the client out.
        client = self._clients.pop(effect.request.client, None)
        if client is not None:
            self._clients[effect.request.client] = client
            client.answers[effect.request.number] = effect.answer
            client.newest = max(client.newest, effect.request.number)
            for number in [each for each in client.answers if each <= client.newest - self._window]:
                del client.answers[number]

    def open_client(self, client: int) -> None:
        """Know a client more."""
        self._clients[client] = _Client()
        if len(self._clients) > self._most_clients:
            del self._clients[next(iter(self._clients))]

    def query(self, question: Any) -> Answer:
        """The service's answer to a question."""
        try:
            return Answer(self.service.query(question))
        except Exception as error:
            return Answer(error=told(error))

    def clone(self) -> "Machine":
        """Another one in the same state."""
        other = Machine(self._make, window=self._window, most_clients=self._most_clients)
        other.load(msgspec.json.decode(msgspec.json.encode(self.dump()), type=prepared(MachineDump)))
        return other

    def dump(self) -> MachineDump:
        clients = [(number, each.newest, dict(each.answers)) for number, each in self._clients.items()]
        return MachineDump(self.service.dump(), clients)

    def load(self, dump: MachineDump) -> None:
        self.service.load(dump.service)
        self._clients = {number: _Client(newest, dict(answers)) for number, newest, answers in dump.clients}

    def digest(self) -> str:
        """A hash of the service's state: the same wherever the state is."""
        return blake2b(msgspec.json.encode(self.service.dump(), order="sorted"), digest_size=8).hexdigest()


def told(error: Exception) -> str:
    """The text of an answer that says no, never empty: an answer without one is a value.

    A fault of the service is an answer, too: it has changed nothing, and what stopped one node would stop all
    of them at this operation, for good. Where it is not the same everywhere, the digests of the answers tell.
    """
    if isinstance(error, MemoryError):
        raise error
    text = str(error) if isinstance(error, Refused) else f"the service failed: {type(error).__name__}: {error}"
    return text.encode("utf-8", "backslashreplace").decode() or "refused"  # half a surrogate pair is no JSON
