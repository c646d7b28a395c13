"""Spark's own jars at one place for all environments that have the same: a class archive fits one class path."""

import csv
import hashlib
import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from mainstem.process.java import cache_directory
from mainstem.process.shared_files import share, sizes


def spark_home() -> Path:
    """The `SPARK_HOME` for a driver of this environment: one that is set, else the shared one.

    Where jars cannot be shared (another file system, jars or settings that somebody has added),
    it is the environment's own.
    """
    if chosen := os.environ.get("SPARK_HOME"):
        return Path(chosen)
    own = _own()
    files = _recorded(own)
    if not files or (own / "conf").exists():
        return own
    jars = sorted((Path(name).name, recorded) for name, recorded in files.items() if name.startswith("jars/"))
    digest = hashlib.sha256(repr(jars).encode()).hexdigest()[:16]
    try:
        return share(cache_directory() / "spark", digest, own, {name: size for name, (_, size) in files.items()})
    except OSError:
        return own


def _own() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _recorded(own: Path) -> dict[str, tuple[str, int]]:
    """Path -> (hash, size) of programs and jars, as pip has recorded them; empty where others are there."""
    try:
        record = distribution("pyspark").read_text("RECORD") or ""
    except PackageNotFoundError:
        return {}
    files = {
        name.removeprefix("pyspark/"): (digest, int(size))
        for name, digest, size in csv.reader(record.splitlines())
        # What lies deeper is not on the class path.
        if str(Path(name).parent) in ("pyspark/bin", "pyspark/jars")
    }
    return files if sizes(own, ("bin", "jars")) == {name: size for name, (_, size) in files.items()} else {}
