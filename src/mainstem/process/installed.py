"""With which packages and jars a version of a job was started: its sources are frozen, and these are not.

    jobs/<job>@<version>/lock.json    written once, before the version is bound to its code

A version goes on, is read anew, or is current once more with what is installed then. Where that is something else, `up`
says so: what it computes may not be what it computed before.
"""

import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import msgspec

from mainstem.client.internal import job_key
from mainstem.core.files import make_directory, write_atomically
from mainstem.core.prepared import prepared
from mainstem.process.jars import SPARK_LOCK
from mainstem.process.versions import live_versions

LOCK_FILE = "lock.json"
_NAMED = 5


class Lock(msgspec.Struct, frozen=True):
    """What was there when a version first started.

    Attributes:
        packages: all that were installed, name -> version.
        used: those of which something was imported.
        jars: of Spark, as `jars.lock` names them.
    """

    packages: dict[str, str]
    used: list[str]
    jars: str


class OtherPackages(msgspec.Struct, frozen=True):
    """A version that does not run with what it was first started with; `changed`: name, version then, version now."""

    job: str
    version: str
    changed: list[tuple[str, str, str]]

    def __str__(self) -> str:
        told = [f"{name} {now or 'none'} for {before}" for name, before, now in self.changed[:_NAMED]]
        more = f" and {len(self.changed) - _NAMED} more" if len(self.changed) > _NAMED else ""
        return (
            f"job {job_key(self.job, self.version)} runs with other packages than those it was first started with: "
            f"{', '.join(told)}{more}; install those to have what it computed, or `mainstem job reprocess {self.job}`"
        )


def write_lock(home: Path) -> None:
    """Keep what is installed, and what of it this process has imported; durable on return."""
    make_directory(home)
    write_atomically(home / LOCK_FILE, _encoded())


def other_packages(data: Path) -> Iterator[OtherPackages | str]:
    """The versions that would run with others now, and what is wrong with files that cannot be read. Of versions from
    before there were such files nothing is known.
    """
    now = _installed()
    for each in live_versions(data):
        lock = _read(data / "jobs" / job_key(each.job, each.version) / LOCK_FILE)
        if isinstance(lock, str):
            yield lock
        if not isinstance(lock, Lock):
            continue
        changed = [
            (name, lock.packages.get(name, ""), now.get(name, ""))
            for name in lock.used
            if lock.packages.get(name) != now.get(name)
        ]
        if lock.jars != SPARK_LOCK.read_text():
            changed.append(("jars of Spark", "others", "those of this Mainstem"))
        if changed:
            yield OtherPackages(each.job, each.version, changed)


def _read(path: Path) -> Lock | str | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=prepared(Lock))
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return (
            f"{path}: expected the packages that a job was started with: {error}; bring it back from a copy, or remove it: "
            "then nothing is known of them"
        )


@cache
def _encoded() -> bytes:
    """Once for all versions that a process starts: it takes a quarter of a second."""
    return msgspec.json.format(msgspec.json.encode(Lock(_installed(), sorted(_imported()), SPARK_LOCK.read_text())))


def _installed() -> dict[str, str]:
    found = {each.metadata["Name"]: each.version for each in distributions() if each.metadata["Name"]}
    return dict(sorted(found.items()))


def _imported() -> set[str]:
    modules = {name.partition(".")[0] for name in sys.modules.copy()}
    return {name for module, names in packages_distributions().items() if module in modules for name in names}
