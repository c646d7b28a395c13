"""What a view's page asks for, passed on to its node.

/views/<node>/<view>          the page; /views/<node>/<view>/about is what it begins with
/views/<node>/<view>/row      and rows, search, POST query: as the node answers them (docs/formats/views.md)

Tokens come in the header `Mainstem-Basis`, several with commas between them; the answer's goes back in it. Cookies are
not passed on.
"""

import functools
import operator
from collections.abc import Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.client.basis import HEADER, parse
from mainstem.core.bodies import Bodies
from mainstem.dash.nodes import READS, About, Nodes
from mainstem.dash.web import HEADERS, answering, json_answer, page
from mainstem.web.threads import Threads

MOST_BODY_BYTES = 1 << 20
BODY_SECONDS = 10.0


class Views:
    """The routes of views.

    Args:
        nodes: that may be asked.
        threads: where they are.
    """

    def __init__(self, nodes: Nodes, threads: Threads) -> None:
        self._nodes, self._threads = nodes, threads
        self._bodies = Bodies(16 * MOST_BODY_BYTES, seconds=BODY_SECONDS)

    def routes(self) -> Sequence[Route]:
        at = "/views/{node}/{view}"
        return [
            Route(at, page("view")),
            Route(f"{at}/about", answering(self._about)),
            *(Route(f"{at}/{read}", answering(self._ask), methods=[method]) for read, method in READS.items()),
        ]

    async def _about(self, request: Request) -> Response:
        node, view = request.path_params["node"], request.path_params["view"]
        about: About = await self._threads.call(self._nodes.about, node, view)
        return json_answer(about)

    async def _ask(self, request: Request) -> Response:
        node, view = request.path_params["node"], request.path_params["view"]
        read = request.url.path.rpartition("/")[2]
        with self._bodies.hold() as held:
            body = None
            if request.method == "POST":
                try:
                    body = await held.read(request.stream(), MOST_BODY_BYTES)
                except ClientDisconnect:
                    return Response(status_code=499)
            basis = _together(request.headers.get(HEADER, ""))
            answer = await self._threads.call(self._nodes.ask, node, view, read, request.url.query, body, basis)
        headers = HEADERS | ({HEADER: answer.basis} if answer.basis else {})
        return Response(answer.body, answer.status, headers, media_type="application/json")


def _together(tokens: str) -> str | None:
    """One token for all, as a page has one of its last read and one of a cutover.

    Raises:
        BadToken, OtherLog: they are none, or not of one log.
    """
    given = [parse(each.strip()) for each in tokens.split(",") if each.strip()]
    return functools.reduce(operator.add, given).token if given else None
