"""The Spark session that jobs run in: locked jars, a Java that can run it, and the settings
that correctness rests on.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.core import UserError
from mainstem.core.causes import one_line
from mainstem.process.class_archive import archive_path, use_archive
from mainstem.process.jars import spark_jars
from mainstem.process.java import Java, find_java
from mainstem.process.java_classes import CHECKPOINT_FILES, java_classes
from mainstem.process.spark_home import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem.process.project_config import JobConfig


class ApplicationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[spark.applications.NAME]`: what is otherwise for the jobs with `application = "NAME"`. They have a driver
    process, and so a Spark application, of their own.

    Attributes:
        master: empty: that of `[spark]`.
        driver_memory: empty: that of `[spark]`.
        settings: laid over those of `[spark]`.
    """

    master: str = ""
    driver_memory: str = ""
    settings: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.master:
            check_master(self.master)
        _check_settings(self.settings)


class SparkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[spark]`: one driver process for all jobs of one version of the code that name no `application`.

    Attributes:
        master: where the jobs run: `local[N]` for N tasks at a time on this machine, best twice its cores or more:
            short tasks wait for long ones otherwise; `spark://HOST:PORT` or `k8s://https://HOST:PORT` for a cluster
            (docs/clusters.md).
        driver_memory: heap of the driver's JVM; with `local[N]` it does all the work.
        log_level: of Spark's own log, as log4j names them.
        settings: anything else that Spark knows; what exactly-once rests on cannot be overridden.
        applications: tables `[spark.applications.NAME]`.
    """

    master: str = "local[8]"
    driver_memory: str = "1g"
    log_level: str = "ERROR"
    settings: dict[str, str] = {}
    applications: dict[str, ApplicationConfig] = {}

    def __post_init__(self) -> None:
        check_master(self.master)
        _check_settings(self.settings)

    def of(self, application: str, master: str | None = None) -> "SparkConfig":
        """What an application is started with; `master` is that of the command line, which goes before both tables."""
        own = self.applications.get(application, ApplicationConfig())
        return msgspec.structs.replace(
            self,
            master=master or own.master or self.master,
            driver_memory=own.driver_memory or self.driver_memory,
            settings=self.settings | own.settings,
        )


_MASTER = re.compile(r"local|local(-cluster)?\[[\d*, ]+\]|yarn|(spark|k8s)://.+")


def check_master(master: str) -> None:
    """Raises ValueError: it is none that Spark knows."""
    if not _MASTER.fullmatch(master):
        raise ValueError(f"master = {master!r}: expected local[N], spark://HOST:PORT or another of Spark's")


def _check_settings(settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        if reason := _contradiction(key, value):
            raise ValueError(f"settings: {reason}")


RULES = {
    # A broker recognises a duplicate batch by its sequence range only: a second attempt of a task with other rows would
    # be acknowledged and discarded. So a failed attempt fails the batch, and the batch is run again as a whole.
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that hold in every session; a project that contradicts them is refused."""

JOB_RULES = {
    # These are written into a checkpoint when it is made and cannot be switched on later. Every source has a name. The
    # offset log stays at version 1: with version 2, Spark 4.2.0 cannot go on after a crash within a batch (its metadata
    # lack the number of state partitions, which the restart asks for: "None.get").
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Settings that hold in the session of every job."""

_DEFAULTS = {
    "spark.scheduler.mode": "FAIR",  # the default lets one job's long batch hold up all others
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # One number of tasks for one shuffle: adaptive execution would change it between two runs of a batch.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.databricks.delta.snapshotPartitions": "2",  # a table here has few files: the default 50 is 50 tasks a commit
    "spark.cleaner.periodicGC.interval": "5min",
}

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTORS_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
# Ten times the JVM's own thresholds: at a start on two cores its optimising compiler takes as much time as all else
# (docs/decisions/spark-start.md), and a loop that is worth it gets there within the first long batch anyway.
LATE_C2 = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
NO_C2 = ("-XX:TieredStopAtLevel=1",)
"""For a session in which nothing runs for long: the first batches take half the time of a processor."""
# Spark recognises that a batch was interrupted by a regular expression over the message, which goes a few frames deeper
# with each letter: with the usual stack of 1 MB every stop of a query wrote a thousand lines of StackOverflowError.
_DEEP = "-Xss16m"
# Java's Avro makes room for as many bytes or items as a value says it has, before it reads them. A damaged one that
# says 2 GB ended the JVM, with all jobs and tables in it, at every start; beyond the limit a value does not decode.
_AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{what}.maxLength={most << 20}"
    for what, most in (("bytes", 64), ("string", 64), ("collectionItems", 16))
)
_WORKERS_PATH = "spark.executorEnv.PYTHONPATH"
_WORKERS_PYTHON = "spark.pyspark.python"
IMPORTS = "spark.mainstem.imports"
"""A setting of our own: `worker_imports` of a session that `start_session` gave."""
CLAIMS_PORT = "spark.mainstem.claims.port"
"""Another one: the first of the ports on which the driver answers the tasks of its jobs, one a job; any unless set."""
STOP_SECONDS = 10
"""So long a query may take to stop: a function that hangs in the driver would hold up whoever stops it for ever."""
_LOCAL = {
    "spark.python.daemon.module": "mainstem.process.worker_daemon",  # on other hosts it is asked for mainstem first
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class BadSparkSetting(UserError):
    """A setting that would break what the jobs promise."""


class SparkNotStarted(UserError):
    """Java or Spark refused what it was started with, or the machine has not enough memory for it."""


def start_session(
    name: str, config: SparkConfig, *, directory: Path, compilers: Sequence[str] = LATE_C2
) -> "SparkSession":
    """Start the JVM and the root session. One per process, and one at a time per `directory`: scratch files go below
    it, and those that a killed JVM has left there are deleted.

    Args:
        name: of the application.
        config: a local one with Java's options of its own gets none of ours.
        directory: for what lasts as long as the session.
        compilers: Java's options for them, `LATE_C2` or `NO_C2`.

    Raises:
        NoJava: no Java that can run Spark.
        FetchFailed: a jar is missing and could not be fetched.
        NotCompiled: another Spark than ours.
        SparkNotStarted: Java or Spark ended at once.
    """
    java = find_java()
    jars = local_jars(java, directory) if is_local(config.master) else spark_jars()
    shutil.rmtree(scratch_directory(directory), ignore_errors=True)
    settings = session_settings(config, directory, jars)
    archive = archive_path(java, jars)
    if is_local(config.master) and not config.settings.get(_JAVA_OPTIONS):
        # A killed JVM leaves what it has unpacked there behind: with the scratch files it is gone at the next start.
        temporary = f"-Djava.io.tmpdir={scratch_directory(directory).absolute()}"
        options = [*compilers, _DEEP, temporary, *(use_archive(archive) if archive.is_file() else ())]
        settings[_JAVA_OPTIONS] += f" {shlex.join(options)}"
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = workers_python(config)
    if is_local(config.master):
        os.environ["SPARK_HOME"] = str(spark_home())
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    for each in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # who catches an error tells it, in one line
        PySparkLogger.getLogger(each).disabled = True
    builder = SparkSession.builder.appName(name).master(config.master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # of several kinds, by where it failed: in Java's own start, or in Spark's
        is_there = "" if is_local(config.master) else f"does a cluster of this Spark answer at {config.master}? "
        raise SparkNotStarted(
            f"Spark did not start: {one_line(error)}",
            hint=f"{is_there}Java says why in the lines before; [spark] has master = {config.master!r}, driver_memory = "
            f"{config.driver_memory!r} and {len(config.settings)} settings of its own",
        ) from error
    session.sparkContext.setLogLevel(config.log_level)
    check_rules(session.sparkContext.getConf().get)
    return session


def local_jars(java: Java, directory: Path | None = None) -> list[Path]:
    """What is on the class path of a driver on this machine, beside Spark's own. As of `spark_jars` and
    `java_classes`.
    """
    return [*spark_jars(), java_classes(java, directory)]


def workers_python(config: SparkConfig, environment: Mapping[str, str] = os.environ) -> str:
    """The Python that Spark's workers are: on this machine the one that runs this. On others, and in an image, it may
    lie elsewhere. Spark reads the setting in `spark-submit` only, which is not what starts a driver here.
    """
    if is_local(config.master):
        return sys.executable
    return config.settings.get(_WORKERS_PYTHON) or environment.get("PYSPARK_PYTHON") or sys.executable


def session_settings(config: SparkConfig, directory: Path, jars: Sequence[Path]) -> dict[str, str]:
    """Every setting of the root session, jars included."""
    scratch = scratch_directory(directory)
    scratch.mkdir(parents=True, exist_ok=True)
    names = [str(jar) for jar in jars]
    # On one machine the class path is enough, and the JVM takes only what is there from its archive of classes.
    classes = {"spark.driver.extraClassPath": ":".join(names)}
    own = (classes if is_local(config.master) else {"spark.jars": ",".join(names)}) | {
        "spark.driver.memory": config.driver_memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    found = _DEFAULTS | (_LOCAL if is_local(config.master) else {}) | own | config.settings | RULES
    # Python workers start in a directory that is anybody's: a project's as it is edited, or one with a `token.py`.
    paths = filter(None, (str(worker_imports(directory).absolute()), config.settings.get(_WORKERS_PATH)))
    java = {key: f"{_AVRO_LIMITS} {found.get(key, '')}".strip() for key in (_JAVA_OPTIONS, _EXECUTORS_JAVA_OPTIONS)}
    imports = {_WORKERS_PATH: os.pathsep.join(paths), IMPORTS: str(worker_imports(directory).absolute())}
    return found | java | imports | {"spark.executorEnv.PYTHONSAFEPATH": "1"}


def scratch_directory(directory: Path) -> Path:
    """Where the blocks and shuffles of a session that was started with `directory` lie."""
    return directory / "scratch"


def worker_imports(directory: Path) -> Path:
    """Where the Python workers of a session that was started with `directory` find modules first."""
    return directory / "imports"


def job_session(spark: "SparkSession", job: str, config: "JobConfig") -> "SparkSession":
    """A session of the job's own: its settings are not seen by other jobs.

    Raises:
        BadSparkSetting: a setting contradicts the rules.
    """
    session = spark.newSession()
    for key, value in JOB_RULES.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", str(config.state_partitions))
    session.conf.set("spark.sql.streaming.stopTimeout", f"{STOP_SECONDS}s")
    for key, value in config.spark.items():
        if reason := _contradiction(key, value):
            raise BadSparkSetting(f"[jobs.{job}] spark: {reason}", hint="remove the setting")
        try:
            session.conf.set(key, value)
        except Exception as error:  # of several kinds, by what is wrong with it
            reason = str(error).strip().partition("\n")[0]
            raise BadSparkSetting(f"[jobs.{job}] spark: {key}: {reason}", hint="mend or remove the setting") from error
    return session


def has_ended(spark: "SparkSession") -> bool:
    """Whether the JVM behind a session that `start_session` gave has ended, or its application: a cluster may end that,
    whose driver goes on without being able to do anything.
    """
    context: Any = spark.sparkContext
    if context._gateway.proc.poll() is not None:
        return True
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # it has ended meanwhile
        return True


def stop_session(spark: "SparkSession") -> int:
    """Stop the session and its JVM, and wait until it has ended: it works on files of ours till then. Its exit code."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends when nobody holds the other end
    return int(gateway.proc.wait())


def driver_place(spark: "SparkSession") -> tuple[str, str, int]:
    """Where tasks find the driver: the host that they are told, the address that it binds, and the first port; 0: any.

    The two differ where the driver lies behind a name or an address that its own machine does not have, as in a pod.
    """
    if is_local(str(spark.sparkContext.master)):
        return "127.0.0.1", "127.0.0.1", 0
    conf = spark.sparkContext.getConf()
    host = str(conf.get("spark.driver.host"))
    return host, str(conf.get("spark.driver.bindAddress", host)), int(str(conf.get(CLAIMS_PORT, "0")))


def is_local(master: str) -> bool:
    """Whether Spark runs within one process of this machine."""
    return master == "local" or master.startswith("local[")


def tasks_at_once(master: str) -> int | None:
    """For how many tasks Spark has room with this master; None where that is for a cluster to say."""
    if master == "local":
        return 1
    found = re.match(r"local\[ *(\d+|\*)", master)
    return (os.cpu_count() or 1) if found and found[1] == "*" else int(found[1]) if found else None


def check_rules(get: Callable[[str], str | None]) -> None:
    """Check a running context: a session that somebody else started may have other settings.

    Raises:
        BadSparkSetting: a rule does not hold.
    """
    for key, expected in RULES.items():
        found = get(key)
        if found != expected:
            raise BadSparkSetting(
                f"Spark: expected {key} = {expected}, found {found}", hint="start a session of its own"
            )


def _contradiction(key: str, value: str) -> str:
    """What is wrong with a setting; empty if it keeps the rules."""
    needed = (RULES | JOB_RULES).get(key, value)
    return "" if needed == value else f"{key} = {value!r} would break the exactly-once promise, which needs {needed!r}"
