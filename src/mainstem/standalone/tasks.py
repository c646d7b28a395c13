"""`connect.json`, `spark-<code>.json` and `serve-<node>.json` in the data directory: how each source, sink, job and
view is, and each table that a sink has to hold back, for `mainstem up` and `mainstem status`.

    {"format": 1, "pid": 4713, "tasks": [{"name": "source fleet", "state": "waiting", "error": "...", ...}]}

The process that runs them replaces the file whenever one changes. It counts while that process lives:
`pid` says whose it is.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from mainstem.core.files import write_atomically
from mainstem.core.prepared import prepared
from mainstem.core.task import TaskState

FORMAT = 1
_PARTS = {"sink": ": ", "view": ", "}
"""How the name of a part goes on after that of the whole: `sink lake: table orders`, `view planes@web, of other`."""
SEVERAL_FAILURES = 3  # in a row: once or twice is what a log or a database that starts again costs


class TasksFile(msgspec.Struct):
    """The file as it is."""

    pid: int
    tasks: list[TaskState]
    format: int = FORMAT


def tasks_file(data: Path, process: str = "connect") -> Path:
    return data / f"{process}.json"


class TasksWriter:
    """Writes the file; tasks change in threads of their own."""

    def __init__(self, data: Path, pid: int, process: str = "connect") -> None:
        data.mkdir(parents=True, exist_ok=True)
        self._path, self._pid, self._lock = tasks_file(data, process), pid, threading.Lock()

    def save(self, tasks: list[TaskState]) -> None:
        """Replace the file as a whole; from any thread."""
        with self._lock:
            write_atomically(self._path, msgspec.json.encode(TasksFile(self._pid, tasks)))


def load_tasks(data: Path, pids: Collection[int | None], now_ms: int) -> list[TaskState]:
    """The tasks of these processes, as people should see them at `now_ms`; what others have left is not looked at."""
    found: list[TaskState] = []
    for path in _files(data):
        try:
            file = msgspec.json.decode(path.read_bytes(), type=prepared(TasksFile))
        except (OSError, msgspec.DecodeError):
            continue
        if file.pid in pids:
            found += [task.seen_at(now_ms) for task in file.tasks]
    return found


def forget_tasks(data: Path) -> None:
    """Remove what the processes of an earlier start have said: one of today may have the id of one of theirs, above all
    in a container. Call it under the lock, before the first process is started.
    """
    for path in _files(data):
        path.unlink(missing_ok=True)


def _files(data: Path) -> list[Path]:
    return [tasks_file(data), *sorted(data.glob("spark-*.json")), *sorted(data.glob("serve-*.json"))]


def is_failing(task: TaskState) -> bool:
    """Whether a person should look: it needs one, or fails again and again.
    A job that waits for its input does neither.
    """
    return task.state == "failed" or (task.state == "waiting" and task.failures >= SEVERAL_FAILURES)


def whole_tasks(tasks: Iterable[TaskState]) -> Mapping[str, TaskState]:
    """The sources, sinks, splices, jobs and views by the names of their tasks. Of one that has parts (the tables of a
    sink, the indexes of a view) the worst counts; what is wrong with a part begins with which that is.
    """
    found: dict[str, TaskState] = {}
    for task in tasks:
        kind = task.name.partition(" ")[0]
        name, _, part = task.name.partition(_PARTS[kind]) if kind in _PARTS else (task.name, "", "")
        if part:
            task = msgspec.structs.replace(task, name=name, error=f"{part}: {task.error}" if task.error else "")
        if name not in found or _badness(task) > _badness(found[name]):
            found[name] = task
    return found


def _badness(task: TaskState) -> int:
    return ("waiting", "failed").index(task.state) + 1 if task.state in ("waiting", "failed") else 0


def failed_jobs(tasks: Iterable[TaskState]) -> dict[str, str]:
    """Why versions of jobs do not run, by `<job>@<version>`, of those that have failed."""
    failed = [task for task in tasks if task.name.startswith("job ") and task.state == "failed"]
    return {task.name.removeprefix("job "): task.told for task in failed}


def jobs_tried_again(tasks: Iterable[TaskState]) -> dict[str, str]:
    """Why the last try of versions has failed, by `<job>@<version>`, of those that are tried again."""
    waiting = [task for task in tasks if task.name.startswith("job ") and task.state == "waiting"]
    return {task.name.removeprefix("job "): task.error for task in waiting}


class News:
    """Turns states into lines: one when a task waits, when it fails, and when it works again.

    Jobs that are idle wait for what others bring, and what has failed once or twice may have started before what it
    needs.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, str]] = {}

    def of(self, tasks: list[TaskState]) -> Iterator[str]:
        """The lines that are new since the last call."""
        for task in tasks:
            before = self._told.get(task.name, ("running", ""))
            now = (task.state, task.error)
            begins = task.state == "waiting" and task.failures < SEVERAL_FAILURES
            quiet = begins or (task.state == "idle" and not task.needs_a_person)
            if quiet or task.state == "stopped" or now == before:
                continue
            self._told[task.name] = now
            if task.state == "running":
                yield f"{task.name} works again" if before[0] != "idle" else f"{task.name} goes on"
            else:
                yield f"{task.name} {'failed' if task.state == 'failed' else 'waits'}: {task.told}"
