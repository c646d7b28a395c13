"""A version that goes on with what another one keeps, from where that one is: `job reprocess --state-of`.

    1. hold the other one at the end of a batch      2. copy its checkpoint, under a query's id of its own
    3. commit a marker: the new version has its first batch behind it, ends where the other one stood, and has written
       nothing                                       4. the other one goes on

Spark goes on with a state whatever code comes to it, as long as it is kept by the same operator, in the same columns; a
state function may keep further variables. What is written from there on is all that the new version's topic has.
"""

import shutil
import uuid
from pathlib import Path

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.internal import job_key
from mainstem.client.progress import Marker, read_marker
from mainstem.core.files import make_directory, sync_directory, write_atomically
from mainstem.process.injections import INJECTIONS
from mainstem.process.landing import check_held, held_at_one_position
from mainstem.process.restore import bring_injections
from mainstem.process.sink_checkpoint import Checkpoint
from mainstem.process.sink_commit import BatchCommitter, JobIdentity

_UNFINISHED = "checkpoint.copied"


def with_state_of(connection: Connection, data: Path, job: str, before: str, version: str) -> Marker:
    """Give `version`, which has never run, the state and the position of version `before`; its first commit.

    Killed anywhere in it, the version has not been asked for, and its number is not taken again.

    Args:
        connection: the log.
        data: the data directory, in which a driver runs `before`.
        job: its name.
        before: the version whose state it is.
        version: the new one.

    Raises:
        NotLanded: `before` does not run, or has read nothing yet.
    """
    home = data / "jobs" / job_key(job, version)
    checkpoint, made = home / "checkpoint", home / _UNFINISHED
    with held_at_one_position(data, {job: [before]}) as stands:
        marker = read_marker(connection, job, before, linearizable=True)
        check_held({before: stands[job][before].batch}, {before: marker.batch if marker is not None else None})
        assert marker is not None
        make_directory(home)
        source = data / "jobs" / job_key(job, before)
        shutil.copytree(source / "checkpoint", made, ignore=shutil.ignore_patterns("*.tmp"))
        if (source / INJECTIONS).exists():  # a job with state has some
            shutil.copytree(source / INJECTIONS, home / INJECTIONS)
    made.joinpath(".metadata.crc").unlink(missing_ok=True)
    write_atomically(made / "metadata", msgspec.json.encode({"id": str(uuid.uuid4())}))
    bring_injections(made, home / INJECTIONS)
    Checkpoint(made).sync(marker.batch)
    made.rename(checkpoint)
    sync_directory(home)
    committer = BatchCommitter(JobIdentity(job, version, str(checkpoint)), connection)
    try:
        committer.open()
        committer.begin()
        read = {topic for topics in marker.end_offsets.values() for topic in topics}
        return committer.commit(
            marker.batch,
            marker.end_offsets,
            topics={name: each for name, each in marker.topics.items() if name in read},
            event_time=marker.event_time,
        )
    finally:
        committer.close()
