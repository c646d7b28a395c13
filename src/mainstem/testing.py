"""Test the jobs of a project with rows: no log, no registry, the same functions.

    from mainstem.testing import jobs_of

    def test_revenue(mainstem_spark):
        with jobs_of("shop", mainstem_spark).start("revenue_hourly") as revenue:
            assert revenue.feed(orders_enriched=[{"region": "north", "ordered_at": noon, "amount_cents": 5}]) == []
            assert revenue.advance(noon + timedelta(hours=2)) == [{"region": "north", "hour": noon, "revenue_cents": 5}]

A job without state is called with the rows of each batch. One with state is a streaming query that is fed batch by
batch, with the watermark, the state and the late rows that it has on a log. What a log adds, that each batch comes out
once, is not for a project to test.
"""

import tempfile
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakKeyDictionary

from mainstem.core import UserError
from mainstem.process.declare import SINCE, UNTIL
from mainstem.tested_job import TestedJob
from mainstem.tested_stateful import StatefulJob
from mainstem.tested_stateless import StatelessJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from mainstem.process.analysis import Analysis
    from mainstem.process.project import Input, Project

_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Compiling code for a batch takes longer than going through some rows without."""


class UnknownColumns(UserError):
    """What the columns of an input are is said nowhere."""


_WARM_UP = """
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F

events = topic("events", event_time="at")

@stream(to="copied")
def copied(events):
    return events.where("number > 0")

@table(to="counted", key="hour", watermark=("at", "1 minute"))
def counted(events):
    hours = events.groupBy(F.window("at", "1 hour")).agg(F.sum("number").alias("number"))
    return hours.select(F.col("window.start").alias("hour"), "number")
"""


@contextmanager
def session() -> "Iterator[SparkSession]":
    """A Spark for the tests of this process, two tasks at a time. It takes some seconds to start, and has then run a
    job of each kind: the first test of a kind would take as long as ten later ones.

    Raises:
        NoJava, FetchFailed, SparkNotStarted: it cannot.
    """
    from mainstem.process.session import NO_C2, SparkConfig, start_session, stop_session

    with tempfile.TemporaryDirectory(prefix="mainstem-test-", ignore_cleanup_errors=True) as home:
        spark = start_session("tests", SparkConfig(master="local[2]"), directory=Path(home), compilers=NO_C2)
        try:
            _warm_up(spark, Path(home))
            yield spark
        finally:
            stop_session(spark)


def _warm_up(spark: "SparkSession", home: Path) -> None:
    """Java loads and compiles what tests need; two jobs at a time, as there are two tasks."""
    from mainstem.process.project import load_project

    project = home / "warm-up"
    project.mkdir()
    (project / "mainstem.toml").touch()
    (project / "jobs.py").write_text(_WARM_UP)
    jobs = Jobs(load_project(project), spark, {"events": "number long, at timestamp"})

    def run(name: str) -> None:
        for _ in range(2):
            with jobs.start(name) as job:
                job.feed(events=[{"number": 1, "at": "2026-01-01T12:00"}])
                job.advance("2026-01-01T14:00")

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(run, name) for name in jobs.project.order]:
            done.result()


def jobs_of(project: str | Path, spark: "SparkSession", *, columns: Mapping[str, str] | None = None) -> "Jobs":
    """The jobs of the project at `project`.

    Args:
        project: its directory.
        spark: a session that `mainstem.testing.session` gave, or the fixture `mainstem_spark`.
        columns: of topics that have no schema in the project, as Spark writes them: `{"crm.customers": "id long"}`.

    Raises:
        BadSetting, BadDeclaration: the project cannot be loaded.
    """
    from mainstem.process.frozen import code_hash
    from mainstem.process.imports import import_from, link_for_workers, places_of, ship
    from mainstem.process.project import load_project
    from mainstem.process.session import IMPORTS

    loaded = load_project(project)
    places = places_of(loaded.directory)
    import_from(*places)  # its functions may import more of it
    if links := spark.sparkContext.getConf().get(IMPORTS):  # a session of somebody else's has none
        link_for_workers(places, Path(links))
    ship(loaded.modules)
    columns = columns or {}
    return Jobs(loaded, spark, columns, _known(spark, code_hash(loaded.directory), columns))


_Found: TypeAlias = dict[str, tuple["Analysis", dict[str, "StructType"]]]
_found: "WeakKeyDictionary[SparkSession, dict[Hashable, _Found]]" = WeakKeyDictionary()


def _known(spark: "SparkSession", *what: Any) -> _Found:
    """What was found out of the jobs of this code: most tests of a session load the same."""
    key = tuple(frozenset(each.items()) if isinstance(each, Mapping) else each for each in what)
    return _found.setdefault(spark, {}).setdefault(key, {})


class Jobs:
    """The jobs of one project. `start` one, and feed it."""

    def __init__(
        self, project: "Project", spark: "SparkSession", columns: Mapping[str, str], found: _Found | None = None
    ) -> None:
        self.project = project
        self._spark, self._columns = spark, columns
        self._found: _Found = {} if found is None else found

    def start(self, name: str) -> TestedJob:
        """A job that has read nothing yet.

        Raises:
            UnknownColumns: of an input.
            BadDeclaration: it cannot run; with the file and line.
        """
        from mainstem.process.session import job_session

        analysis, types = self._analysis(name)
        session = job_session(self._spark, name, self.project.job_config(name))
        for key, value in _FEW_ROWS.items():
            session.conf.set(key, value)
        session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false")
        kind = StatefulJob if analysis.stateful else StatelessJob
        return kind(self.project, name, session, analysis, types)

    def _analysis(self, name: str) -> "tuple[Analysis, dict[str, StructType]]":
        """What the job means, and the columns of its inputs; those that other jobs write are found out the same way."""
        from mainstem.process.analysis import analyse

        if name not in self._found:
            project = self.project
            if name not in project.jobs:
                raise UserError(f"job {name}: expected one of {', '.join(project.order)}")
            inputs = project.inputs[name]
            types = {each.parameter: self._type(each) for each in inputs}
            times = {each.parameter: project.topics[each.topic].event_time for each in inputs}
            found = analyse(self._spark, project.jobs[name], inputs, types, times, project.directory)
            self._found[name] = found, types
        return self._found[name]

    def _type(self, each: "Input") -> "StructType":
        from pyspark.sql.types import StructType

        from mainstem.process.prepare import input_type
        from mainstem.registry.spark import TopicSchema

        if each.job is not None:
            job = self.project.jobs[each.job]
            return self._analysis(each.job)[0].results[job.topics.index(each.topic)].columns
        if each.topic in self._columns:
            history = f", {SINCE} timestamp, {UNTIL} timestamp" if each.history is not None else ""
            return cast("StructType", StructType.fromDDL(self._columns[each.topic] + history))
        file = self.project.topics[each.topic].schema_file
        if file is None:
            raise UnknownColumns(
                f"topic {each.topic}: expected a schema in the project, found none",
                hint=f'say its columns: jobs_of(…, columns={{"{each.topic}": "id long, name string"}})',
            )
        return input_type(self._spark, each, TopicSchema(each.topic, file.read_text(), 0, {}))
