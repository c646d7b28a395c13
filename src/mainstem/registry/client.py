"""A blocking client of any Confluent-compatible registry, on the standard library alone:
it also runs in Spark's workers.
"""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec

from mainstem.core.errors import Retriable
from mainstem.core.http import open_request
from mainstem.registry.errors import IncompatibleSchema, InvalidSchema, NotFound, NotPermitted, RegistryError

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryUnavailable(Retriable):
    """The registry does not answer, or not with what a registry answers."""


class RegisteredSchema(msgspec.Struct, frozen=True):
    """One version of a subject."""

    subject: str
    version: int
    id: int
    schema: str


class Registry:
    """The registry at `url` (`http://host:port`). What never changes, the text of an id, is asked for once."""

    def __init__(self, url: str, *, timeout_seconds: float = 10.0, patience_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout_seconds
        self.patience_seconds = patience_seconds  # how long a registry that is down is asked again
        self._schemas: dict[int, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.url, self.timeout_seconds, self.patience_seconds)  # a worker starts with an empty cache

    def register(self, subject: str, schema: str) -> int:
        """The id of `schema` in `subject`; registered on the way if it is new.

        It is asked for each time: with a subject that is deleted for good its ids are gone.

        Raises:
            IncompatibleSchema: the subject's level forbids it; `reasons` says why.
            InvalidSchema: it is not a schema.
            RegistryUnavailable: no answer.
        """
        return int(self._call("POST", f"/subjects/{_quoted(subject)}/versions", {"schema": schema})["id"])

    def schema(self, schema_id: int) -> str:
        """The text of a schema id.

        Raises:
            NotFound: no such id.
            RegistryUnavailable: no answer.
        """
        if schema_id not in self._schemas:
            self._schemas[schema_id] = str(self._call("GET", f"/schemas/ids/{schema_id}")["schema"])
        return self._schemas[schema_id]

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject, asked for anew each time.

        Raises:
            NotFound: no such subject.
            RegistryUnavailable: no answer.
        """
        return self.version(subject, "latest")

    def version(self, subject: str, number: int | str) -> RegisteredSchema:
        """One version of a subject; `number` may be `latest`."""
        answer = self._call("GET", f"/subjects/{_quoted(subject)}/versions/{number}")
        return RegisteredSchema(answer["subject"], answer["version"], answer["id"], answer["schema"])

    def subjects(self) -> list[str]:
        """The names of all subjects, in order."""
        return list(self._call("GET", "/subjects"))

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        deadline = time.monotonic() + self.patience_seconds
        pause = 0.05
        while True:
            try:
                return self._ask(method, path, body)
            except RegistryUnavailable:
                # Every request of the API may be sent twice: a registration that was stored gives the same id again.
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(2.0, pause * 2)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)  # noqa: S310 - the user's own url
        try:
            try:
                with open_request(request, self.timeout_seconds) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                with error:
                    status, answer = error.code, error.read()
        except (OSError, ValueError, http.client.HTTPException) as error:  # the last: half an answer
            reason = " ".join(str(error).split()) or type(error).__name__  # one line, whatever a server says
            raise RegistryUnavailable(
                f"registry {self.url}: no answer: {reason}", hint="is the gateway running?"
            ) from error
        raise _translated(status, answer, f"{method} {self.url}{path}")


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _rebuilt(url: str, timeout_seconds: float, patience_seconds: float) -> Registry:
    return Registry(url, timeout_seconds=timeout_seconds, patience_seconds=patience_seconds)


def _translated(status: int, body: bytes, asked: str) -> Exception:
    try:
        answer = json.loads(body)
        code, message = int(answer["error_code"]), str(answer["message"])
    except (ValueError, KeyError, TypeError):
        return RegistryUnavailable(f"{asked}: status {status}, found {body[:100]!r}")
    if status >= 500 or status == 429:
        return RegistryUnavailable(f"{asked}: {message}")
    if status == 409:
        return IncompatibleSchema(message, message.partition("): ")[2].split("; "))
    if code == InvalidSchema.code:
        return _invalid(message)
    kind = NotFound if status == 404 else NotPermitted if status == 422 else RegistryError
    return kind(message, code=code)


def _invalid(message: str) -> InvalidSchema:
    pointer, colon, reason = message.partition(": ")
    return InvalidSchema(reason, pointer=pointer) if colon and pointer.startswith("/") else InvalidSchema(message)
