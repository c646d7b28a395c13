"""A spliced job without a driver: its versions' topics are written by the test, and a consumer reads the stable one."""

from mainstem.client.append import append
from mainstem.client.catalog import read_catalog, with_cutover, write_catalog
from mainstem.client.topics import alter_config, end_offsets, stable_offsets
from mainstem.registry.reader import TypedReader
from tests.support.versions import write_versions
from tests.support.waiting import wait_until

FILLER = "filler"  # a key
AT_ONCE = {
    "cleanup.policy": "compact",
    "segment.bytes": "1000",
    "min.cleanable.dirty.ratio": "0",
    "min.compaction.lag.ms": "0",
}


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


def compact(connection, topic):
    """Have of all that a topic has now the last record of each key alone, on a log that looks for such all the time."""
    alter_config(connection, topic, AT_ONCE)
    for _ in range(3):  # each is larger than a segment: what is before the last one is sealed
        write(connection, topic, (FILLER, "x" * 2_000))

    def is_clean():
        keys = [key for key, _ in records(connection, topic) if key != FILLER]
        return len(keys) == len(set(keys))

    wait_until(is_clean, f"topic {topic} is compacted")
