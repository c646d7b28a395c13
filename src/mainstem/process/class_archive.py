"""An archive of the classes that a Spark driver loads, so that the JVM need not parse and verify them at every start.

Spark, its Kafka connector and Delta are tens of thousands of classes; on two cores, reading them anew takes most of the
time until a driver is up (docs/decisions/spark-start.md has the figures). The JVM can write down what it has loaded
(`-XX:ArchiveClassesAtExit`) and map that file the next time (JEP 350). An archive fits one Java and one class path, so
its name is their hash; one that is missing or does not fit costs nothing but time.

`mainstem.standalone.class_archive` makes it, by running a small project.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from mainstem.process.java import Java, cache_directory
from mainstem.process.spark_home import spark_home

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


def make_archive(path: Path) -> tuple[str, ...]:
    """Options for a JVM that is to write, when it ends, all classes that it has loaded."""
    return (f"-XX:ArchiveClassesAtExit={path}", *_QUIET)
