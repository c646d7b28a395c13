"""What security refuses; codes are in `wire.errors`."""

from concurrent.futures import Future

from mainstem.core.errors import MainstemError
from mainstem.wire.errors import Code, RequestError


class AuthenticationFailed(MainstemError):
    """The client has not shown who it is. The message is told to it: it says neither whether there is such a user, nor
    what was wrong.
    """


class Undecided(Exception):
    """Whether the client has shown who it is depends on what is on its way: ask again when `done` is."""

    def __init__(self, done: "Future[None]") -> None:
        super().__init__("not decided yet")
        self.done = done


class NotAllowed(RequestError):
    """Who asks may not do that; the code says to what kind of thing."""

    def __init__(self, code: Code) -> None:
        super().__init__(code, _MESSAGES.get(code, ""))


_MESSAGES = {
    Code.topic_authorization_failed: "Topic authorization failed.",
    Code.group_authorization_failed: "Group authorization failed.",
    Code.cluster_authorization_failed: "Cluster authorization failed.",
    Code.transactional_id_authorization_failed: "Transactional Id authorization failed.",
}
