"""An archive of the classes that a Spark driver loads, so that the JVM need not parse and verify them at every start.

Spark, its Kafka connector and Delta are tens of thousands of classes; on two cores, reading them anew takes most of the
time until a driver is up (docs/decisions/spark-start.md has the figures). The JVM can write down what it has loaded
(`-XX:ArchiveClassesAtExit`) and map that file the next time (JEP 350). An archive fits one Java and one class path, so
its name is their hash; one that is missing or does not fit costs nothing but time.

It builds on an archive of Java's own classes, which comes with Java; the one in the wheel comes without.

`mainstem.standalone.class_archive` makes it, by running a small project.
"""

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from mainstem.process.java import Java, cache_directory
from mainstem.process.spark_home import spark_home

BASE = ".base"
UNFINISHED = "unfinished-"
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # which classes cannot be archived is nobody's concern


def archive_path(java: Java, jars: Iterable[Path]) -> Path:
    """Where the archive for this Java and these jars, beside Spark's own, is or would be."""
    own = spark_home() / "jars"
    digest = hashlib.sha256(f"{java.home}\n".encode())
    release = java.home / "release"
    digest.update(release.read_bytes() if release.is_file() else b"")
    for jar in [*sorted(own.glob("*.jar")), *jars]:
        state = jar.stat()
        digest.update(f"{jar} {state.st_size} {state.st_mtime_ns}\n".encode())
    return cache_directory() / "classes" / f"{digest.hexdigest()[:16]}.jsa"


def use_archive(path: Path) -> tuple[str, ...]:
    """Options for a JVM that is to take classes from the archive."""
    return (f"-XX:SharedArchiveFile={path}", *_QUIET)


def base_archive(java: Java, archive: Path) -> Path | None:
    """The archive of Java's own classes that `archive` is to build on, made beside it where it is missing.

    None: Java has one; or it could not make one, and will write no archive.
    """
    if _runs(java, "-Xshare:on", "-version"):
        return None
    base = archive.with_suffix(BASE)
    if not base.is_file():
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=base.parent) as beside:
            new = Path(beside) / base.name
            _runs(java, "-Xshare:dump", f"-XX:SharedArchiveFile={new}")
            # The first of two that make it stays: an archive fits only the one that it was made with.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.link(new, base)
    return base if base.is_file() else None


def make_archive(path: Path, base: Path | None = None) -> tuple[str, ...]:
    """Options for a JVM that is to write, when it ends, all classes that it has loaded; `base` as of `base_archive`."""
    builds_on = (f"-XX:SharedArchiveFile={base}",) if base is not None else ()
    return (*builds_on, f"-XX:ArchiveClassesAtExit={path}", *_QUIET)


def _runs(java: Java, *options: str) -> bool:
    done = subprocess.run([java.executable, *options], check=False, capture_output=True, stdin=subprocess.DEVNULL)
    return done.returncode == 0
