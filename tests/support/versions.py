"""A small project of one job, and versions of a job as the log knows them, without a driver that runs them."""

import msgspec

from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.internal import COMMITS, PROGRESS, job_key
from mainstem.client.progress import Marker, Progress
from mainstem.client.topics import ensure_internal_topics, ensure_topic

JOBS = 'from mainstem.process import stream, topic\nfrom helper import LIMIT\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return LIMIT\n'


def write_small_project(directory):
    """One job, a module that it uses, a schema, and something that is no source of it."""
    (directory / "schemas").mkdir(parents=True)
    (directory / "mainstem.toml").write_text("[project]\nname = 'x'\n[gateway]\nlisten = '127.0.0.1:9600'\n")
    (directory / "jobs.py").write_text(JOBS)
    (directory / "helper.py").write_text("LIMIT = 1\n")
    (directory / "schemas" / "a.avsc").write_text("{}")
    (directory / ".mainstem").mkdir()
    (directory / ".mainstem" / "big.py").write_text("not a source")
    return directory


ONE_JOB = 'from mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return a\n'


def write_project_of_one_job(directory):
    """`jobs.py` with `ONE_JOB`, and no settings."""
    directory.mkdir()
    (directory / "mainstem.toml").write_text("")
    (directory / "jobs.py").write_text(ONE_JOB)
    return directory


def write_versions(connection, job, versions=("1", "2"), *, source="orders", code="c0de", windows_by="", also=()):
    """The catalog's entry of a job: each version reads `source`, of one partition, and writes a topic of the job's name
    and `also` others; the first one is current.
    """
    ensure_internal_topics(connection)
    ensure_topic(connection, source, 1)
    found = {}
    for version in versions:
        written = [each if version == "1" else f"{each}.v{version}" for each in (job, *also)]
        for topic in written:
            ensure_topic(connection, topic, 1)
        found[version] = {
            "code": code,
            "output": written[0],
            "also": dict(zip(also, written[1:], strict=True)),
            "inputs": {"o": source},
            "tables": [],
            "determinism": "prefix-deterministic",
            "reason": "",
            "windows_by": windows_by,
        }
    write_catalog(connection, {f"job:{job}": {"versions": found, "current": versions[0]}})


def write_read(connection, job, version, position, *, source="orders", event_time=0, ends=None):
    """A version has read its input up to `position`, and closed windows up to `event_time`; of markers of before `ends`
    were kept none are given.
    """
    position_of = {"o": {source: {0: position}}}
    marker = Marker(job, version, "uuid", position, position_of, event_time=event_time, ends=ends or {})
    append(connection, COMMITS, [(job_key(job, version).encode(), msgspec.json.encode(marker))])


def write_batch(connection, job, version, number, position, end, *, source="orders"):
    """A version has read its input up to `position`; its output, of one partition, goes up to `end`."""
    ends = {job if version == "1" else f"{job}.v{version}": {0: end}}
    progress = Progress(job, version, number, {source: {0: position}}, {}, ends)
    append(connection, PROGRESS, [(job_key(job, version).encode(), msgspec.json.encode(progress))])
