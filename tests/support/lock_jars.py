"""Make the lock files of jars anew: `python -m tests.support.lock_jars`, called by `make lock`.

Spark's jars are the lines of their lock, whose versions a person edits; Kafka's, those of Kafka Streams and of Kafka
Connect are what Maven resolves from their roots.
Comments stay where they are above a line.
"""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conformance.connect import LOCK as CONNECT_LOCK
from conformance.streams import LOCK as STREAMS_LOCK
from mainstem.process import jars
from mainstem.process.java import find_java
from tests.support.kafka_tools import LOCK as KAFKA_LOCK

KAFKA = "4.3.0"
KAFKA_ROOTS = (
    ("org.apache.kafka", "kafka_2.13", KAFKA, True),
    ("org.apache.kafka", "kafka-tools", KAFKA, True),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4", False),  # Kafka's release adds it: logs are written
)
STREAMS_ROOTS = (
    ("org.apache.kafka", "kafka-streams", KAFKA, True),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4", True),
)
CONNECT_ROOTS = (
    ("org.apache.kafka", "connect-runtime", KAFKA, True),
    ("org.apache.kafka", "connect-file", KAFKA, True),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4", True),
)
Root = tuple[str, str, str, bool]
"""Group, name, version, and whether its dependencies come too."""


def resolve(roots: Sequence[Root]) -> list[str]:
    """The lines of a lock that names `roots` and what Maven says they need."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        dependencies = "".join(
            f'<dependency org="{group}" name="{module}" rev="{version}" conf="default-&gt;default" '
            f'transitive="{str(transitive).lower()}"/>'
            for group, module, version, transitive in roots
        )
        (work / "ivy.xml").write_text(
            '<ivy-module version="2.0"><info organisation="mainstem" module="lock"/>'
            f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies></ivy-module>'
        )
        subprocess.run(
            [str(find_java().executable), "-jar", str(jars._ivy_jar()), "-ivy", str(work / "ivy.xml"),
             "-cache", str(work / "cache"), "-confs", "default",
             "-retrieve", str(work / "out/[organisation]/[artifact]/[revision].[ext]")],
            check=True, stdout=sys.stderr,
        )  # fmt: skip
        return [
            f"{jar.parent.parent.name}:{jar.parent.name}:{jar.stem} "
            f"sha256:{hashlib.sha256(jar.read_bytes()).hexdigest()}"
            for jar in sorted((work / "out").glob("*/*/*.jar"))
        ]


def main() -> None:
    for lock, roots in ((KAFKA_LOCK, KAFKA_ROOTS), (STREAMS_LOCK, STREAMS_ROOTS), (CONNECT_LOCK, CONNECT_ROOTS)):
        comments = [line for line in lock.read_text().splitlines() if line.startswith("#")]
        lock.write_text("\n".join([*comments, *resolve(roots)]) + "\n")

    locked = jars.read_lock(jars.SPARK_LOCK)
    found = {line.split()[0]: line for line in resolve([(jar.group, jar.name, jar.version, False) for jar in locked])}
    lines = [
        line if line.startswith("#") else found[line.split()[0]] for line in jars.SPARK_LOCK.read_text().splitlines()
    ]
    jars.SPARK_LOCK.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
