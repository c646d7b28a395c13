"""What this machine has of what Mainstem needs."""

import importlib.util
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal

import msgspec

from mainstem.core import MainstemError, UserError
from mainstem.standalone.disks import disk_of

EXTRAS: dict[str, tuple[str, ...]] = {
    "gateway": ("starlette", "uvicorn", "httptools", "fastavro", "prometheus_client"),
    "postgres": ("psycopg2", "fastavro"),
    "spark": ("pyspark", "pyarrow", "pandas", "numpy", "google.protobuf", "deltalake", "fastavro"),
    "serve": ("rocksdict", "tantivy", "duckdb", "pyarrow", "pytz", "starlette", "uvicorn", "httptools", "fastavro"),
    "oauth": ("joserfc",),
}
NEEDED_BY = {
    "oauth": "a log that takes tokens (OAUTHBEARER)",
    "gateway": "`mainstem up` of any project",
    "postgres": "sources and destinations of type postgres",
    "serve": "serving nodes",
    "spark": "jobs, `mainstem plan` and the lakehouse",
}
"""What an extra is for; the log alone needs none."""
ENOUGH_FILES = 4096
SLOW_SYNC_MS = 20.0


class Finding(msgspec.Struct, frozen=True):
    """One line of `mainstem doctor`: ok; warn: a part is not installed, or works with a limit; bad: what is installed
    will not work.
    """

    verdict: Literal["ok", "warn", "bad"]
    what: str
    found: str


def check_extra(extra: str) -> None:
    """Refuse to begin what needs an extra of the package.

    Raises:
        UserError: a module of it is not installed.
    """
    for module in EXTRAS[extra]:
        if not _is_installed(module):
            raise not_installed(module, extra)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package it is in
        return False


def not_installed(module: str, extra: str) -> UserError:
    """The error for a module that an extra brings."""
    return UserError(f"{module}: not installed", hint=f"it comes with an extra: pip install 'mainstem[{extra}]'")


def examine(data: Path) -> list[Finding]:
    """Look at everything; `data` is where state will be kept."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _packages,
        _java,
        _jars,
        _class_archive,
        lambda: _disk(data),
        lambda: _promises(data),
        _files,
        _ports,
    ]
    return [finding for check in checks for finding in check()]


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok" if sys.version_info >= (3, 11) else "bad", "Python 3.11 or newer", version)
    linux = sys.platform.startswith("linux") and os.uname().machine == "x86_64"
    yield Finding("ok" if linux else "warn", "Linux on x86_64", f"{sys.platform} {os.uname().machine}")


def _packages() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if not _is_installed(module)]
        how = f"missing: {', '.join(missing)}; {NEEDED_BY[extra]} needs it: pip install 'mainstem[{extra}]'"
        found = how if missing else "installed"
        yield Finding("warn" if missing else "ok", f"extra {extra}", found)


def _java() -> Iterator[Finding]:
    from mainstem.process.java import find_java

    try:
        java = find_java()
    except MainstemError as error:
        installed = _is_installed("pyspark")
        yield Finding("bad" if installed else "warn", "Java 17 or newer, for Spark", f"{error} ({error.hint})")
    else:
        yield Finding("ok", "Java 17 or newer, for Spark", str(java.home))


def _jars() -> Iterator[Finding]:
    from mainstem.process.jars import SPARK_LOCK, absent_jars, read_lock
    from mainstem.process.java import cache_directory

    wanted, missing = len(read_lock(SPARK_LOCK)), absent_jars()
    found = f"{wanted - len(missing)} of {wanted} in {cache_directory()}"
    yield Finding("warn" if missing else "ok", "jars for Spark", found + ("; fetched at first use" if missing else ""))


def _class_archive() -> Iterator[Finding]:
    from mainstem.process.class_archive import archive_path
    from mainstem.process.jars import SPARK_LOCK, read_lock
    from mainstem.process.java import cache_directory, find_java
    from mainstem.process.java_classes import classes_path

    what = "archive of Spark's classes"
    if importlib.util.find_spec("pyspark") is None:
        return
    try:
        jars = [jar.path_in(cache_directory()) for jar in read_lock(SPARK_LOCK)]
        made = archive_path(find_java(), [*jars, classes_path()]).is_file()
    except (MainstemError, FileNotFoundError):
        made = False  # the lines above say what is missing
    command = f"{sys.executable} -m mainstem.standalone.class_archive"
    yield Finding(
        "ok" if made else "warn", what, "made" if made else f"none: Spark starts slowly; make it by: {command}"
    )


def _disk(data: Path) -> Iterator[Finding]:
    disk = disk_of(data)
    yield Finding("warn" if disk.is_low else "ok", "free disk", str(disk))
    place = Path(disk.directory)
    try:
        milliseconds = sync_milliseconds(place)
    except OSError as error:
        yield Finding("bad", "a durable write", str(error))
        return
    slow = milliseconds > SLOW_SYNC_MS
    note = ": every acknowledged write waits for this" if slow else ""
    yield Finding("warn" if slow else "ok", "a durable write (fdatasync of 4 KiB)", f"{milliseconds:.2f} ms{note}")


def _promises(data: Path) -> Iterator[Finding]:
    """What a power cut may take of the log that is there, running or not."""
    from mainstem.broker.facts import METADATA, peek
    from mainstem.log import TopicConfig

    for directory in (data, data / "log"):
        if not (directory / str(METADATA)).is_dir():
            continue
        facts = peek(directory)
        found = {key.removeprefix("topic:"): fact for key, fact in facts.items() if key.startswith("topic:")}
        settings = {name: TopicConfig.from_kafka(topic["config"]) for name, topic in found.items()}
        trusting = {name: each for name, each in settings.items() if not each.syncs_every_append}
        for name, each in sorted(trusting.items()):
            yield Finding("warn", f"topic {name}", f"a power cut may take {each.lost_by_power_cut} (flush.messages)")
        count = len(settings) - len(trusting)
        yield Finding("ok", "acknowledged records", f"on the disk before they are acknowledged, in {count} topics")


def sync_milliseconds(directory: Path, times: int = 9) -> float:
    """Median time of an fdatasync of 4 KiB in `directory`."""
    taken = []
    with NamedTemporaryFile(dir=directory) as file:
        for _ in range(times):
            file.write(b"\0" * 4096)
            file.flush()
            before = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - before) * 1000)
    return sorted(taken)[times // 2]


def _files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(soft, hard if hard != resource.RLIM_INFINITY else soft)
    yield Finding("ok" if limit >= ENOUGH_FILES else "warn", "open files", f"{limit:,} at most")


def _ports() -> Iterator[Finding]:
    for port, use in ((9092, "the log"), (9600, "the gateway")):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                yield Finding("ok", f"port {port} for {use}", "free")
            except OSError:
                yield Finding("warn", f"port {port} for {use}", "in use: is Mainstem up? else choose another")
