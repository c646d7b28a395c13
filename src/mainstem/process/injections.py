"""Rows that a job gives its own query, as files, to move its watermark: of inputs that are idle or finished.

    jobs/hourly@1/heartbeats/4f0c….txt     one line, an event time in ms; Spark reads a name once

Through a topic they would wake up the queries of all other jobs. Each stream of a query reads the directory by a source
of its own; none of these rows comes out.
"""

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.core.files import sync_directory, write_atomically

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEARTBEAT = "_heartbeat"
"""The column that tells a heartbeat from a row."""
INJECTIONS = "heartbeats"
"""The directory in a version's home."""
_KEPT = 1000


class Injections:
    """Those of one running version. `take_over` before its query starts.

    Args:
        home: of the version.
    """

    def __init__(self, home: Path) -> None:
        self.directory = home / INJECTIONS
        self._home = home
        self._count = 0

    def take_over(self) -> None:
        """Make the directory. What older runs have left there counts; what they were about to put there goes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for unfinished in self._home.glob("*.txt*"):
            unfinished.unlink()
        self._count = sum(1 for _ in self.directory.glob("*.txt"))

    def put(self, event_time: int, last_look: Callable[[], float]) -> None:
        """Nothing that is older than this comes any more, in ms since 1970; 0 says nothing, and makes a batch.

        Args:
            event_time: the time.
            last_look: when the last finished batch began to look for input, in seconds since 1970: what was there by
                then has been read.
        """
        name = f"{uuid.uuid4().hex}.txt"
        written = self._home / name  # outside of the directory: Spark takes whatever appears there
        write_atomically(written, f"{event_time}\n".encode())
        written.rename(self.directory / name)
        sync_directory(self.directory)
        self._count += 1
        if self._count % _KEPT == 0:
            self.forget(last_look())

    def forget(self, read_before: float) -> None:
        """Delete those that Spark has read, since it lists all of them for each batch.

        The last ones stay: a batch that was planned with them may be run again.
        """
        times = {file: file.stat().st_mtime for file in self.directory.glob("*.txt")}
        read = sorted((file for file, time in times.items() if time < read_before), key=lambda file: times[file])
        for file in read[:-_KEPT]:
            file.unlink()

    def rows(self, session: "SparkSession", column: str, source: str) -> "DataFrame":
        """They as rows of an event time, by a source of this name."""
        from pyspark.sql import functions as F

        place = re.sub(r"([\[\]{}*?\\])", r"\\\1", str(self.directory))  # it may name many directories otherwise
        lines = session.readStream.name(source).format("text").load(place)
        return lines.select(F.timestamp_millis(F.col("value").cast("long")).alias(column), F.lit(True).alias(HEARTBEAT))


def with_heartbeats(rows: "DataFrame", beats: "DataFrame", column: str, delay: str, name: str) -> "DataFrame":
    """`rows` with a watermark that heartbeats move too; none of them comes out.

    Rows without an event time are left out: no window could hold them. Spark pushes filters below the watermark, where
    they would take the heartbeats away before they are seen. Two things hold them back: the filter here names the
    event-time column, and those of the job meet `observe`, which nothing is pushed through.
    """
    from pyspark.sql import functions as F

    both = rows.withColumn(HEARTBEAT, F.lit(False)).unionByName(beats, allowMissingColumns=True)
    never = F.col(column) < F.lit("0001-01-02").cast("timestamp")
    kept = both.withWatermark(column, delay).filter((~F.col(HEARTBEAT) & F.col(column).isNotNull()) | never)
    return kept.drop(HEARTBEAT).observe(f"barrier_{name}", F.count(F.lit(1)).alias("rows"))
