"""What the buttons of the dashboard do: what `mainstem job` does."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from mainstem.client.catalog import entries, read_catalog
from mainstem.client.connection import Connection
from mainstem.core import MainstemError
from mainstem.core.prepared import prepared
from mainstem.dash.operations import Done, GivenUp, Going
from mainstem.dash.web import Changed, UnknownJob
from mainstem.process.cutover import Moves, Overtaken, Waiting, check_revert, cutover, revert
from mainstem.standalone import overview
from mainstem.standalone.command_process import run_command
from mainstem.standalone.job_versions import JobVersion, job_versions
from mainstem.standalone.moved_nodes import wait_for_nodes
from mainstem.standalone.moved_views import wait_for_views
from mainstem.standalone.overview import tasks_of
from mainstem.standalone.tasks import failed_jobs, jobs_tried_again


class _Reprocessed(msgspec.Struct, frozen=True):
    """Of `mainstem job reprocess --json`."""

    version: str
    code: str
    output: str


class DashboardCommands:
    """For any thread.

    Args:
        project: its directory.
        data: its data directory.
        connection: the log.
    """

    def __init__(self, project: Path, data: Path, connection: Connection) -> None:
        self._project, self._data, self._connection = project, data, connection
        self._runs: dict[str, Callable[[str, Mapping[str, str], Going], Done]] = {
            "cutover": self._cutover,
            "revert": self._revert,
            "reprocess": self._reprocess,
            "diff": self._diff,
        }

    def knows(self, job: str) -> bool:
        """Whether the catalog has the job, or one of its versions waits for its first start."""
        waiting = {task.name.removeprefix("job ").rpartition("@")[0] for task in tasks_of(self._data)}
        return job in waiting or job in entries(read_catalog(self._connection), "job")

    def check(self, kind: str, job: str, asked: Mapping[str, str]) -> None:
        """See at once that a revert leads to the version that its page has promised; `run` does so again, with it."""
        if kind != "revert":
            return
        try:
            check_revert(self._connection, {job: asked["version"]})
        except Overtaken as error:
            raise Changed(str(error), hint=error.hint) from None

    def versions(self, job: str) -> list[JobVersion]:
        """The versions of a job, and which are ready."""
        try:
            return job_versions(self._connection, self._data, job, tasks_of(self._data))
        except overview.UnknownJob as error:
            raise UnknownJob(str(error), hint=error.hint) from None

    def run(self, kind: str, job: str, asked: Mapping[str, str], going: Going) -> Done:
        """What was asked for; its errors are those of the command."""
        return self._runs[kind](job, asked, going)

    def _cutover(self, job: str, asked: Mapping[str, str], going: Going) -> Done:
        moves = cutover(self._connection, self._data, {job: asked["version"]}, self._waiting(going))
        return self._moved(moves, going)

    def _revert(self, job: str, asked: Mapping[str, str], going: Going) -> Done:
        to = {job: asked["version"]}
        return self._moved(revert(self._connection, self._data, [job], self._waiting(going), to=to), going)

    def _reprocess(self, job: str, asked: Mapping[str, str], going: Going) -> Done:
        """In a process of its own: it imports the project's code as it is now."""
        options = ["--anyway"] if "anyway" in asked else []
        try:
            found = self._command("reprocess", [job], going, *options)
        except GivenUp:  # perhaps between its last step and its end
            raise GivenUp(
                f"it was given up; `mainstem job versions {job}` shows whether a version was asked for before"
            ) from None
        done = msgspec.json.decode(found, type=prepared(_Reprocessed))
        return Done(
            [f"version {done.version} is started now from the code {done.code}, and writes topic {done.output}"]
        )

    def _diff(self, job: str, asked: Mapping[str, str], going: Going) -> Done:
        """In a process of its own: it reads both outputs, and computes. What it says is for the page, as it is."""
        return Done([], result=self._command("diff", [job, asked["left"], asked["right"]], going))

    def _command(self, word: str, arguments: Sequence[str], going: Going, *options: str) -> str:
        where = ["--project", str(self._project), "--data", str(self._data), "--json"]
        words = [
            "job",
            word,
            *where,
            *options,
            "--",
            *arguments,
        ]  # what begins with - is no option: it came from a browser
        return run_command(words, tell=going.tell, pause=going.pause, directory=self._project)

    def _waiting(self, going: Going) -> Waiting:
        return Waiting(
            failed=lambda: failed_jobs(tasks_of(self._data)),
            tried_again=lambda: jobs_tried_again(tasks_of(self._data)),
            tell=going.tell,
            pause=going.pause,
        )

    def _moved(self, moves: Moves, going: Going) -> Done:
        """What was moved is moved, whatever becomes of views: they follow by themselves."""
        lines = [
            f"version {each.version} is current, which writes topic {each.output}; version {each.previous} goes on"
            for each in moves.moves
        ]
        going.tell("readers are moved; views follow")
        try:
            for view in wait_for_views(self._project, self._data, moves.moves, pause=going.pause):
                to = f"leads to {view.table}"
                lines.append(f"{view.path} {to if view.moved else f'{to} once that is there'}")
            for node in wait_for_nodes(self._connection, moves, pause=going.pause):
                name = f"view {node.view} of node {node.node}"
                lines.append(f"{name} answers by it" if node.moved else f"{name} has not moved yet: {node.why}")
        except GivenUp:
            lines.append("views follow by themselves: nobody waited for them any more")
        except MainstemError as error:
            lines.append(f"whether views have followed is not known: {error}")
        return Done(lines, moves.basis)
