"""A job's page, and its buttons.

/jobs/<name>                                 the page; /jobs/<name>/versions is what it begins with
POST /jobs/<name>/cutover {"version": "2"}   and revert {"version": "1"}, diff {"left": "1", "right": "2"}, reprocess:
                                             202 with what was begun, which the events tell of; 409 while one goes on,
                                             and where a revert does not lead to that version any more
                                             404 where there is no such job, 429 where too many go on of others
POST /operations/<id>/give-up                end it while it waits; 404 where there is none
/operations/<id>/result                      what it has found, as JSON; 404 once it is not kept any more
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.core import UserError
from mainstem.core.bodies import Bodies
from mainstem.dash.operations import KINDS, NEEDED, OPTIONAL, Commands, Done, Going, Operations
from mainstem.dash.web import HEADERS, UnknownJob, answering, json_answer, number, page
from mainstem.web.threads import Threads

MOST_BODY_BYTES = 4096
BODY_SECONDS = 10.0


class Jobs:
    """The routes of jobs.

    Args:
        commands: what versions there are is asked of them.
        operations: what was begun.
        threads: for what blocks.
        tasks: of the running gateway.
    """

    def __init__(
        self,
        commands: Commands,
        operations: Operations,
        threads: Threads,
        tasks: Callable[[], asyncio.TaskGroup],
    ) -> None:
        self._commands, self._operations, self._threads, self._tasks = commands, operations, threads, tasks
        self._bodies = Bodies(64 * MOST_BODY_BYTES, seconds=BODY_SECONDS)

    def routes(self) -> Sequence[Route]:
        return [
            Route("/jobs/{name}", page("job")),
            Route("/jobs/{name}/versions", answering(self._versions)),
            *(Route(f"/jobs/{{name}}/{kind}", answering(self._starting(kind)), methods=["POST"]) for kind in KINDS),
            Route("/operations/{id}/result", answering(self._result)),
            Route("/operations/{id}/give-up", answering(self._give_up), methods=["POST"]),
        ]

    async def _versions(self, request: Request) -> Response:
        return json_answer(await self._threads.call(self._commands.versions, request.path_params["name"]))

    def _starting(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def start(request: Request) -> Response:
            with self._bodies.hold() as held:
                try:
                    body = await held.read(request.stream(), MOST_BODY_BYTES)
                except ClientDisconnect:
                    return Response(status_code=499)
            try:
                asked = msgspec.json.decode(body or b"{}", type=dict[str, str])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UserError(f'expected {{"version": "2"}}, found something else: {error}') from None
            _check(kind, asked)
            job = request.path_params["name"]
            if not await self._threads.call(self._commands.knows, job):
                raise UnknownJob(f"job {job}: no such job runs, or has run", hint="`mainstem job list` shows the jobs")
            await self._threads.call(self._commands.check, kind, job, asked)
            begun = self._operations.start(self._tasks(), kind, job, asked)
            return json_answer(begun, 202)

        return start

    async def _result(self, request: Request) -> Response:
        found = self._operations.result(number(request.path_params["id"], "id") or 0)
        return Response(found, media_type="application/json", headers=HEADERS)

    async def _give_up(self, request: Request) -> Response:
        self._operations.give_up(number(request.path_params["id"], "id") or 0)
        return Response(status_code=202)


def _check(kind: str, asked: Mapping[str, str]) -> None:
    needed, known = set(NEEDED.get(kind, ())), {*NEEDED.get(kind, ()), *OPTIONAL.get(kind, ())}
    if not needed <= asked.keys() <= known or not all(asked.values()):
        expected, found = ", ".join(sorted(known)) or "nothing more", ", ".join(asked) or "nothing"
        raise UserError(f"{kind}: expected {expected}, found {found}")


class NoCommands:
    """Of a dashboard that only shows."""

    def knows(self, _job: str) -> bool:
        return True

    def check(self, kind: str, job: str, asked: Mapping[str, str]) -> None:
        """Nothing is asked for."""

    def versions(self, job: str) -> None:
        raise UserError(f"job {job}: nothing can be done from this dashboard")

    def run(self, kind: str, job: str, _asked: Mapping[str, str], _going: Going) -> Done:
        raise UserError(f"{kind} of job {job}: nothing can be done from this dashboard")
