"""Runs a script of operations against the service: one answer a line, whatever happens to the nodes meanwhile.

    python -m examples.arithmetic.client --nodes 127.0.0.1:8001,127.0.0.1:8002,127.0.0.1:8003 'x+=5' 'x?'

Without operations they are read from the standard input. Every request has an id, and is sent with the same one, to one
node after the other, until one of them has an answer: it is carried out once.

Exit code 0: all were carried out; 1: the service said no to one, its line begins with `error:`, or nobody answered.
"""

import argparse
import itertools
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mainstem.core.address import parse_address
from mainstem.core.config import BadSetting
from mainstem.core.http import open_request

SILENCE_S = 2.0  # then whoever waits is told


class NoAnswer(Exception):
    """Nobody had an answer in time: what was sent may be carried out later."""


class Said(msgspec.Struct, frozen=True):
    """What a node answered: its status, and the body."""

    status: int
    body: dict[str, Any]
    location: str = ""


class Client:
    """One client of the service; one thread uses it.

    Args:
        nodes: `host:port` of each.
        try_seconds: how long one node may take to answer.
        seconds: how long one operation may take, over all tries.
        tell: is called, once for an operation, with what it waits for.

    Attributes:
        tries: how many requests were sent.
        refused: to how many operations the service said no.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        try_seconds: float = 1.0,
        seconds: float = 60.0,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._nodes, self._try_seconds, self._seconds = list(nodes), try_seconds, seconds
        self._turn = itertools.cycle(self._nodes)
        self._node = next(self._turn)  # the one that had the last answer
        self._client = -1
        self._number = 0
        self._tell = tell
        self.tries = self.refused = 0

    def operate(self, op: str) -> str:
        """The value after `x+=5`, or of `x?`; or the error, where the service says no. Carried out once.

        Raises:
            NoAnswer: by no node in time; with the next call it is forgotten.
        """
        if self._client < 0:
            self._client = self._until_answered("/clients", {})["client"]
        self._number += 1
        body = self._until_answered("/ops", {"op": op, "id": f"{self._client}-{self._number}"})
        self.refused += "value" not in body
        return str(body["value"] if "value" in body else body["error"])

    def _until_answered(self, path: str, posted: Any) -> dict[str, Any]:
        began, told = time.monotonic(), False
        while True:
            self.tries += 1
            said = ask(self._node, path, posted, self._try_seconds)
            if said is not None and said.location:
                self._node = urlsplit(said.location).netloc
                said = ask(self._node, path, posted, self._try_seconds)
            if said is not None and not said.location and not said.body.get("retry"):
                return said.body
            waited = time.monotonic() - began
            if waited > self._seconds:
                raise NoAnswer(f"{path} {posted}: nobody had an answer in {self._seconds:.0f} s")
            if waited > SILENCE_S and not told:
                told = True
                self._tell(f"no answer yet from {', '.join(self._nodes)}; asking for {self._seconds:.0f} s")
            self._node = next(self._turn)
            time.sleep(0.02)


def ask(node: str, path: str, posted: Any = None, seconds: float = 5.0) -> Said | None:
    """One request to one node; None where it gives no answer."""
    data = None if posted is None else msgspec.json.encode(posted)
    request = urllib.request.Request(f"http://{node}{path}", data, {"content-type": "application/json"})
    try:
        try:
            answer = open_request(request, seconds)
        except urllib.error.HTTPError as error:  # also a 307: urllib follows none of a POST
            with error:
                return Said(error.code, _decoded(error.read()), error.headers.get("location", ""))
        with answer:
            return Said(answer.status, msgspec.json.decode(answer.read()))
    except (OSError, HTTPException, msgspec.DecodeError):  # it may end in the middle of an answer
        return None


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return dict(msgspec.json.decode(body))
    except (msgspec.DecodeError, TypeError, ValueError):
        return {"error": body.decode(errors="replace")}


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs operations against the arithmetic service.")
    parser.add_argument("--nodes", required=True, metavar="HOST:PORT,…")
    parser.add_argument("operations", nargs="*", metavar="OP", help="x+=5, x-=2, x*=2, x/=3, x?")
    given = parser.parse_args()
    operations = given.operations or (line.strip() for line in sys.stdin if line.strip())
    nodes = [node.strip() for node in given.nodes.split(",")]
    client = Client(nodes, tell=lambda line: print(f"client: {line}", file=sys.stderr, flush=True))
    try:
        for node in nodes:
            parse_address(node, "--nodes", lowest_port=1)
        for op in operations:
            refused, answer = client.refused, client.operate(op)
            print(answer if client.refused == refused else f"error: {answer}", flush=True)
    except BadSetting as error:
        print(f"client: {error} ({error.hint})", file=sys.stderr)
        return 2
    except NoAnswer as error:
        print(f"client: {error}", file=sys.stderr)
        return 1
    return 1 if client.refused else 0


if __name__ == "__main__":
    sys.exit(main())
