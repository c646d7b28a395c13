"""Spark's own jars at one place for all environments that have the same.

A class archive fits one class path, and takes more than a minute to make. pip gives every environment jars of its own;
those of the first are linked into the cache, and from then on they are the class path of all. A link takes no room, and
goes on to hold what it names when the environment is deleted.
"""

import contextlib
import csv
import hashlib
import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from mainstem.process.java import cache_directory

_USERS = "environments.txt"


def spark_home() -> Path:
    """The `SPARK_HOME` for a driver of this environment: one that is set, else the shared one.

    Where jars cannot be shared (another file system, jars or settings that somebody has added),
    it is the environment's own.
    """
    if chosen := os.environ.get("SPARK_HOME"):
        return Path(chosen)
    own = _own()
    jars = _recorded_jars(own)
    if not jars or (own / "conf").exists():
        return own
    digest = hashlib.sha256(repr(sorted(jars.items())).encode()).hexdigest()[:16]
    shared = cache_directory() / "spark" / digest
    try:
        if _sizes(shared / "jars") != {name: size for name, (_, size) in jars.items()}:
            _link(own, shared)
        _sign(own, shared)
    except OSError:
        return own
    return shared


def remove_unused(kept: Path) -> None:
    """Remove the shared jars, other than `kept`, of which every environment is gone."""
    for home in (cache_directory() / "spark").glob("*"):
        if home != kept and not any(Path(line).is_dir() for line in _users(home)):
            shutil.rmtree(home, ignore_errors=True)


def _own() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _recorded_jars(own: Path) -> dict[str, tuple[str, int]]:
    """Name -> (hash, size) of the jars, as pip has recorded them; empty where others are there."""
    try:
        record = distribution("pyspark").read_text("RECORD") or ""
    except PackageNotFoundError:
        return {}
    jars = {
        Path(name).name: (digest, int(size))
        for name, digest, size in csv.reader(record.splitlines())
        if Path(name).parent == Path("pyspark/jars")  # what lies deeper is not on the class path
    }
    return jars if _sizes(own / "jars") == {name: size for name, (_, size) in jars.items()} else {}


def _sizes(jars: Path) -> dict[str, int]:
    return {each.name: each.stat().st_size for each in os.scandir(jars) if each.is_file()} if jars.is_dir() else {}


def _link(own: Path, shared: Path) -> None:
    """Make `shared` whole or not at all; another process may do the same."""
    new = shared.with_name(f"{shared.name}.{os.getpid()}")
    try:
        for part in ("bin", "jars"):
            (new / part).mkdir(parents=True)
            for name in _sizes(own / part):
                os.link(own / part / name, new / part / name)
        if shared.is_dir() and _sizes(shared / "jars") != _sizes(new / "jars"):
            shutil.rmtree(shared)  # somebody has deleted some of it
        with contextlib.suppress(OSError):  # the other process was faster
            new.rename(shared)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _users(home: Path) -> Iterator[str]:
    file = home / _USERS
    yield from file.read_text().splitlines() if file.is_file() else ()


def _sign(own: Path, shared: Path) -> None:
    if str(own) not in _users(shared):
        with (shared / _USERS).open("a") as file:
            file.write(f"{own}\n")
