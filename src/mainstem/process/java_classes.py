"""What of a driver is Java of our own, as a jar: compiled once into the cache, by the compiler that Spark has in it for
its plans (Janino), since a Java that can run Spark need not have one.
"""

import hashlib
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from mainstem.core import MainstemError
from mainstem.process.java import Java, cache_directory
from mainstem.process.spark_home import spark_home

CHECKPOINT_FILES: Final = "mainstem.LocalCheckpointFiles"
_SOURCE: Final = Path(__file__).with_name("LocalCheckpointFiles.java")
_COMPILER: Final = "org.codehaus.commons.compiler.samples.CompilerDemo"


class NotCompiled(MainstemError):
    """Spark's compiler did not take it: it is another Spark than the one that it is written for; or a disk is full."""


def classes_path() -> Path:
    """Where the jar is, or would be: it fits one Spark."""
    fits = (_SOURCE.read_text(), *(jar.name for jar in _spark() if jar.name.startswith("spark-")))
    digest = hashlib.sha256(repr(fits).encode()).hexdigest()[:16]
    return cache_directory() / "jars" / "mainstem" / f"{digest}.jar"


def java_classes(java: Java, otherwise: Path | None = None) -> Path:
    """The jar, made where it is missing; several processes may ask for it at once.

    Args:
        java: compiles it.
        otherwise: a directory to make it in where the cache cannot be written to.

    Raises:
        NotCompiled: it cannot be made.
    """
    made = classes_path()
    try:
        if not made.is_file():
            _make(java, made)
    except OSError as error:
        if otherwise is None:
            raise NotCompiled(
                f"{made}: cannot be written: {error.strerror}", hint="make room, or set MAINSTEM_CACHE"
            ) from error
        made = otherwise / made.name
        _make(java, made)
    return made


def _make(java: Java, jar: Path) -> None:
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=jar.parent) as beside:
        _compile(java, Path(beside))
        _pack(Path(beside), Path(beside) / jar.name)
        (Path(beside) / jar.name).replace(jar)


def _spark() -> list[Path]:
    return sorted((spark_home() / "jars").glob("*.jar"))


def _compile(java: Java, into: Path) -> None:
    path = os.pathsep.join(map(str, _spark()))
    options = ("-cp", path, _COMPILER, "-classpath", path, "-d", str(into), str(_SOURCE))
    done = subprocess.run(
        [java.executable, *options], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode or not any(into.rglob("*.class")):
        said = " ".join((done.stderr or done.stdout).split())
        raise NotCompiled(
            f"{_SOURCE.name}: expected that the compiler of Spark in {spark_home()} takes it, found: {said[-500:]}",
            hint="SPARK_HOME, where it is set, has to be that of the Spark that mainstem was installed with",
        )


def _pack(classes: Path, jar: Path) -> None:
    with zipfile.ZipFile(jar, "w") as packed:
        for each in sorted(classes.rglob("*.class")):
            packed.write(each, each.relative_to(classes))
    with jar.open("rb") as file:
        os.fsync(file.fileno())
