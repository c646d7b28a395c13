"""The driver of a real project as a process, for killing: it says what it does, and waits at any step of the sink.

    python -c "from tests.support.sink_driver import main; main()" '{"project": ..., "bootstrap": ..., ...}'

It starts Spark and says `{"ready": PID OF THE JVM}`. Then it takes lines:

    go {"direct": true, ...}   run the jobs, with these `Settings`
    arm STEP [JOB]             wait when a job comes to this step next, and say `{"at": STEP, "job": JOB}`
    on                         go on from there
    stop                       stop the jobs, then end

It says `{"committed": JOB, "batch": N}` for each batch, `{"failed": JOB, "reason": ...}` for each failure. Steps are
those that the sink traces, and two of its own: `planned`, `task_produced`.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.client.connection import Connection
from mainstem.core import SystemClock
from mainstem.core.logging import configure
from mainstem.process import batch_job as running
from mainstem.process import job_spec
from mainstem.process.frozen import freeze
from mainstem.process.project import load_project
from mainstem.process.run import JobDriver
from mainstem.process.session import SparkConfig, has_ended, start_session, stop_session
from mainstem.process.sink import BatchResult, BatchSink, JobIdentity
from mainstem.registry.client import Registry
from tests.support.hurry import Hurry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPENING = ["sent_init_producer_id", "fenced", "marker_read"]
"""Steps of a start."""
STEPS = [
    "planned", "begun", "task_produced", "sent_txn_offset_commit", "offsets_committed", "plan_synced", "marker_written",
    "ending", "sent_end_txn", "ended", "committed",
]  # fmt: skip
"""Steps of a batch."""
JAVA_ENDED = 3


class Config(msgspec.Struct, frozen=True):
    """`sparks_own`: Spark's own Kafka sink writes, in place of ours."""

    project: str
    bootstrap: str
    registry: str
    data: str
    scratch: str
    tasks: int
    sparks_own: bool = False


class Settings(msgspec.Struct, frozen=True):
    """What may change from one start to the next: a batch that is run again is then divided in another way.

    `direct`: the driver writes small batches itself; `most`: records of a batch; `armed`: the step to wait at first.
    """

    direct: bool
    most: int
    armed: str = ""


class Steps:
    """Where the sink is, and where it has to wait."""

    def __init__(self) -> None:
        self.armed = ""
        self._on = threading.Event()
        self._lock = threading.Lock()

    def trace(self, job: str, step: str) -> None:
        with self._lock:
            if self.armed not in (step, f"{step} {job}"):
                return
            self.armed = ""
            self._on.clear()
            say(at=step, job=job)
        self._on.wait()

    def obey(self, line: str) -> None:
        command, _, step = line.partition(" ")
        if command == "arm":
            self.armed = step
        else:
            self._on.set()

    def end(self) -> None:
        self.armed = ""
        self._on.set()


def traced(steps: Steps) -> type[BatchSink]:
    """Our sink, which tells its steps."""

    class Traced(BatchSink):
        def __init__(self, job: JobIdentity, *given: Any, **named: Any) -> None:
            super().__init__(job, *given, **named, trace=partial(steps.trace, job.job))

        def write(
            self, batch_df: "DataFrame", batch: int, *given: Any, reads: Callable[[], Any] = dict, **named: Any
        ) -> BatchResult:
            def produced() -> Any:
                self._trace("task_produced")
                return reads()

            self._trace("planned")
            result = super().write(batch_df, batch, *given, reads=produced, **named)
            say(committed=self._job.job, batch=batch)
            return result

    return Traced


def sparks_own(steps: Steps) -> type[BatchSink]:
    """Spark's own Kafka sink, which writes each batch at least once."""

    class SparksOwn(BatchSink):
        def open(self, spark: Any = None) -> None:
            return

        def write(self, batch_df: "DataFrame", batch: int, *_: Any, **__: Any) -> BatchResult:
            steps.trace(self._job.job, "planned")
            batch_df.select("topic", "key", "value").write.format("kafka").options(**self._connection.spark()).save()
            steps.trace(self._job.job, "task_produced")
            say(committed=self._job.job, batch=batch)
            return BatchResult(batch, skipped=False)

        def close(self) -> None:
            return

    return SparksOwn


def say(**facts: Any) -> None:
    """One write, so that lines of two threads do not mix."""
    os.write(1, json.dumps(facts).encode() + b"\n")


def main() -> None:
    configure("driver", level="warning")
    config = msgspec.json.decode(sys.argv[1], type=Config)
    scratch = Path(config.scratch)
    scratch.mkdir(parents=True)
    spark_config = SparkConfig(master=f"local[{config.tasks}]", driver_memory="700m")
    spark = start_session("kills", spark_config, directory=scratch)
    gateway: Any = spark.sparkContext._gateway
    say(ready=gateway.proc.pid)
    command, _, text = sys.stdin.readline().partition(" ")
    if command.strip() != "go":
        stop_session(spark)
        return
    settings, steps, stop = msgspec.json.decode(text, type=Settings), Steps(), threading.Event()
    steps.armed = settings.armed

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                break
            steps.obey(line.strip())
        stop.set()
        steps.end()

    threading.Thread(target=listen, daemon=True).start()
    job_spec.BatchSink = (sparks_own if config.sparks_own else traced)(steps)  # type: ignore[misc]
    if not settings.direct:
        running.FEW_RECORDS = -1
    driver = driver_of(config, settings, spark)
    try:
        drive(driver, spark, stop)
    except Exception:
        if not has_ended(spark):
            raise
    if has_ended(spark):
        sys.exit(JAVA_ENDED)
    stop_session(spark)


def driver_of(config: Config, settings: Settings, spark: Any) -> JobDriver:
    data = Path(config.data)
    version = freeze(Path(config.project), data, SystemClock())
    project = load_project(version.directory)
    configs = {
        name: msgspec.structs.replace(project.job_config(name), max_offsets_per_trigger=settings.most)
        for name in project.jobs
    }
    connection, registry = Connection(config.bootstrap), Registry(config.registry)
    return JobDriver(spark, project, version, connection, registry, data, settings=configs, clock=Hurry())


def drive(driver: JobDriver, spark: Any, stop: threading.Event) -> None:
    told: dict[str, int] = {}
    driver.start()
    while not (stop.is_set() or has_ended(spark)):
        driver.step()
        for key, failure in driver.retries.failed.items():
            if failure.error and told.get(key) != failure.failures:
                told[key] = failure.failures
                say(failed=key, reason=failure.error, hint=failure.hint, needs_a_person=failure.needs_a_person)
        time.sleep(0.1)
    if not has_ended(spark):
        driver.stop()
