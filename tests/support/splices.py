"""A spliced job without a driver: its versions' topics are written by the test, and a consumer reads the stable one."""

from mainstem.client.append import append
from mainstem.client.catalog import read_catalog, with_cutover, write_catalog
from mainstem.client.topics import end_offsets, stable_offsets
from mainstem.registry.reader import TypedReader
from tests.support.versions import write_versions


def write_job(connection, job, kind):
    """Two versions of a job, the first one is current; the project has a splice of it, called `<job>.all`."""
    write_versions(connection, job)
    entry = {"kind": kind, "key": ["k"]}
    splice = {f"project:{job}": {"name": job, "sinks": [], "splices": {f"{job}.all": job}}}
    write_catalog(connection, {f"topic:{job}": entry, f"topic:{job}.v2": entry, **splice})


def write(connection, topic, *rows):
    """Records of (key, value); their texts."""
    append(connection, topic, [(key.encode(), None if value is None else str(value).encode()) for key, value in rows])


def ends(connection, *topics):
    return {topic: stable_offsets(connection, {topic: len(end_offsets(connection, topic))})[topic] for topic in topics}


def move(connection, job, version, *, at_one_position=False):
    """A cutover, as `job cutover` writes it; of a stream with where both outputs ended."""
    found = {job: ends(connection, job, f"{job}.v2")} if at_one_position else {}
    write_catalog(connection, with_cutover(read_catalog(connection), {job: version}, {}, 0, found))


def records(connection, topic):
    """What a plain consumer reads, in its order: (key, value)."""
    with TypedReader(connection, topic) as reader:
        return [(record.key, record.value) for record in reader]


def table(connection, topic):
    """What a consumer has that keeps the last value of each key."""
    return {key: value for key, value in dict(records(connection, topic)).items() if value is not None}


def place(at):
    """Where a splice is that does not move from one table to another now: version, topic and offsets."""
    return None if at is None or at.move is not None else (at.version, at.output, at.offsets)
