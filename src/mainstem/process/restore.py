"""Make the lost checkpoint of a job anew from the log: from its copy, or, of a job without state, from its marker.

The marker says which batch the log had last, and where it ended; Spark runs that batch once more, for the state that it
leaves, and the sink knows it and writes nothing. A job without state has nothing to run: its batch has ended.
"""

import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.internal import checkpoint_topic, job_key
from mainstem.client.progress import Marker, read_marker
from mainstem.client.reader import CommittedReader
from mainstem.client.topics import list_topics
from mainstem.core import CorruptData, UserError
from mainstem.core.files import make_directory, sync_directory, write_atomically
from mainstem.process.another_version import start_another
from mainstem.process.checkpoint_copy import note, split_key, write_part
from mainstem.process.injections import INJECTIONS
from mainstem.process.offsets import plan_text, read_plan, source_line
from mainstem.process.sink_checkpoint import INJECTION_SOURCE, Checkpoint
from mainstem.process.sink_commit import fence_job
from mainstem.process.versions import live_versions, read_fixed

_UNFINISHED = "checkpoint.restored"


def lost_version(data: Path, job: str) -> str:
    """The version of a job that was started in a data directory, and has no checkpoint there any more.

    Raises:
        UserError: there is none, or several.
    """
    versions = [each.version for each in live_versions(data) if each.job == job and not each.sliced]
    lost = [each for each in versions if not (data / "jobs" / job_key(job, each) / "checkpoint").exists()]
    if len(lost) == 1:
        return lost[0]
    started = f"those that have one: {', '.join(versions)}" if versions else "it was never started here"
    raise UserError(
        f"job {job}: expected one version without a checkpoint, found {', '.join(lost) or 'none'}; {started}",
        hint="where a checkpoint is damaged, stop the project and move it away; --version names one of several",
    )


def restore(connection: Connection, home: Path, job: str, version: str) -> Marker:
    """Make the checkpoint of a version anew: its next start goes on behind its last commit, which this returns.

    Whatever an older driver has open is aborted first. Killed anywhere in it, there is no checkpoint yet.

    Args:
        connection: the log.
        home: of the version.
        job: its name.
        version: its version.

    Raises:
        UserError: there is a checkpoint, or nothing that one could be made from.
        CorruptData: the copy does not fit the last commit.
    """
    checkpoint, key, fixed = home / "checkpoint", job_key(job, version), read_fixed(home)
    if fixed is None:
        raise UserError(f"job {key} was never started here", hint="`mainstem job list` shows the jobs")
    if checkpoint.exists():
        raise UserError(
            f"{checkpoint}: expected no checkpoint, found one",
            hint="where it is damaged, stop the project and move it away",
        )
    fence_job(connection, job, version)
    marker = read_marker(connection, job, version, linearizable=True)
    if marker is None:
        raise UserError(f"job {key} has committed nothing: it needs no checkpoint to start")
    made = home / _UNFINISHED
    shutil.rmtree(made, ignore_errors=True)
    make_directory(made / "offsets")
    make_directory(made / "commits")
    topic, parts = checkpoint_topic(job, version), dict[str, int]()
    if topic in list_topics(connection):
        parts = _receive(connection, topic, made)
    elif fixed.keeps_state:
        raise UserError(
            f"job {key} keeps state, and the log has no copy of its checkpoint: checkpoint_in_log makes one",
            hint=start_another(job),
        )
    else:
        _write_position(made, marker)
    _check(made, marker)
    bring_injections(made, home / INJECTIONS)
    Checkpoint(made).sync(marker.batch)
    note(made, home, parts)
    made.rename(checkpoint)
    sync_directory(home)
    return marker


def _receive(connection: Connection, topic: str, directory: Path) -> dict[str, int]:
    """Write what a copy has below a directory; how many parts each file came in."""
    parts: dict[str, int] = {}
    with CommittedReader(connection, topic, {0: 0}, deleted="earliest") as reader:
        for message in (message for messages in reader for message in messages):
            name, part = split_key(message.key())
            path, value = directory / name, message.value()
            if not path.resolve().is_relative_to(directory.resolve()):
                raise CorruptData(f"topic {topic}: expected files of a checkpoint, found {name}")
            if value is not None:
                write_part(path, part, value)
                parts[name] = max(parts.get(name, 0), part + 1)
            elif part == 0:
                path.unlink(missing_ok=True)
                parts.pop(name, None)
            elif name in parts:
                parts[name] = min(parts[name], part)
    return parts


def _write_position(directory: Path, marker: Marker) -> None:
    """As Spark writes it for a query without state that has ended its batch; sources stand in the order of its plan."""
    about = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
    plan = plan_text(about, map(source_line, marker.end_offsets.values()))
    write_atomically(directory / "metadata", msgspec.json.encode({"id": marker.checkpoint}))
    for batch in range(max(0, marker.batch - 1), marker.batch + 1):  # Spark never has one plan without that before it
        write_atomically(directory / "offsets" / str(batch), plan)
    write_atomically(directory / "commits" / str(marker.batch), b'v1\n{"nextBatchWatermarkMs":0}')


def bring_injections(checkpoint: Path, directory: Path) -> None:
    """What Spark's log of a job's own event times names is to be there, where the job has them now: what is lost says
    nothing.
    """
    directory.mkdir(exist_ok=True)
    for path in checkpoint.glob(f"sources/{INJECTION_SOURCE}*/[0-9]*"):
        version, *lines = path.read_text().splitlines()
        entries = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        for each in entries:
            file = directory / each["path"].rpartition("/")[2]
            each["path"] = file.resolve().as_uri()
            if not file.exists():
                write_atomically(file, b"0\n")
        path.write_text("\n".join([version, *(msgspec.json.encode(each).decode() for each in entries)]))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _check(directory: Path, marker: Marker) -> None:
    """Raises: CorruptData: it is not the checkpoint of the last commit."""
    found = Checkpoint(directory).started(), read_plan(directory, marker.batch).ends
    if found != (marker.checkpoint, marker.end_offsets):
        raise CorruptData(
            f"{directory}: expected checkpoint {marker.checkpoint} up to {marker.end_offsets}, found {found[0]} up to "
            f"{found[1]}",
            hint=start_another(marker.job),
        )
