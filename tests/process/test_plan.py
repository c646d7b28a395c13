"""The plan says what a project means and what running it would change; it is data."""

import json

import msgspec
import pytest

from mainstem.client.topics import TopicDescription
from mainstem.core import SystemClock
from mainstem.core.config import BadSetting
from mainstem.process.analysis import analyse, remember
from mainstem.process.another_version import instead_of_retired
from mainstem.process.declare import BadDeclaration
from mainstem.process.frozen import freeze
from mainstem.process.plan import plan
from mainstem.process.project import load_project
from mainstem.process.versions import RETIRED_FILE, Fixed, write_fixed
from mainstem.registry.client import RegisteredSchema
from mainstem.registry.errors import NotFound
from mainstem.registry.spark import TopicSchema, row_type

pytestmark = pytest.mark.spark

ORDER = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "cents", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}  # fmt: skip
JOBS = '''
from mainstem.process import changelog, stream, table, topic
from pyspark.sql import functions as F

orders = topic("orders")
prices = changelog("prices", key="id")


@stream(to="big", key="id")
def big(orders):
    """Orders worth looking at.

    And more.
    """
    return orders.filter("cents > 1000")


@table(to="hourly", key="hour", watermark=("at", "1 hour"))
def hourly(big):
    totals = big.groupBy(F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))
    return totals.select(F.col("window.start").alias("hour"), "cents")


@stream(to="priced", key="id")
def priced(orders, prices):
    return orders.join(prices, "id", "left")
'''


class Registered:
    """A registry that knows these subjects."""

    def __init__(self, **subjects):
        self.subjects = {name.replace("_", "-"): json.dumps(tree) for name, tree in subjects.items()}

    def latest(self, subject):
        if subject not in self.subjects:
            raise NotFound(f"subject {subject}")
        return RegisteredSchema(subject, 1, 7, self.subjects[subject])

    def version(self, subject, number):
        return self.latest(subject)

    def schema(self, schema_id):
        raise AssertionError("not asked for")


@pytest.fixture
def project(tmp_path):
    directory = tmp_path / "shop"
    directory.mkdir()
    (directory / "jobs.py").write_text(JOBS)
    (directory / "orders.avsc").write_text(json.dumps(ORDER))
    (directory / "mainstem.toml").write_text('[topics.orders]\npartitions = 3\nschema = "orders.avsc"\n')
    return directory


def test_a_plan_of_nothing_but_the_project(spark, project):
    unknown = plan(load_project(project), spark)
    assert ({topic.exists for topic in unknown.topics}, unknown.complete) == ({None}, False)
    assert [change.split()[0] for change in unknown.changes] == ["start"] * 3
    it = plan(load_project(project), spark, topics={})
    big, hourly, priced = it.jobs

    assert (big.says, big.output, big.determinism, big.keeps_order) == (
        "Orders worth looking at.", "big", "prefix-deterministic", True,
    )  # fmt: skip
    assert [(column.name, column.type) for column in hourly.columns] == [("hour", "timestamp"), ("cents", "bigint")]
    assert (hourly.state, hourly.determinism, hourly.watermark) == ("an aggregation", "batch-dependent", "at, 1 hour")
    assert (priced.columns, priced.determinism, priced.reason) == (None, None, "prices: no schema yet")
    assert {topic.name: (topic.kind, topic.partitions, topic.exists, topic.readers) for topic in it.topics} == {
        "orders": ("stream", 3, False, ["big", "priced"]),
        "prices": ("changelog", 1, False, ["priced"]),
        "big": ("stream", 3, False, ["hourly"]),
        "hourly": ("changelog", 3, False, []),
        "priced": ("stream", 3, False, []),
    }
    assert "create topic orders (stream, partitions: 3)" in it.changes
    assert "start job hourly@1 from the beginning of its inputs" in it.changes
    assert msgspec.json.decode(msgspec.json.encode(it))["jobs"][0]["place"] == f"{project / 'jobs.py'}:9"


LATER = """
from mainstem.process import changelog, stream, topic
from pyspark.sql import functions as F

orders, bigs = topic("orders"), changelog("bigs", key="id")

@stream(to="stamped")
def stamped(orders):
    return orders.withColumn("now", F.current_timestamp())

@stream(to="priced")
def priced(orders, bigs):
    return orders.join(bigs.select("id"), "id", "left")
"""


def test_slices_of_what_depends_on_when_they_run_do_not_add_up(spark, project):
    (project / "jobs.py").write_text(LATER)
    schemas = Registered(bigs_value=ORDER)
    assert {job.name: job.slices for job in plan(load_project(project), spark, registry=schemas).jobs} == {
        "stamped": False, "priced": False,
    }  # fmt: skip


def test_of_an_edited_job_its_kind_is_told_and_of_each_whether_slices_add_up(spark, project, tmp_path):
    data = tmp_path / "data"
    before = {job.name: job for job in plan(load_project(project), spark).jobs}
    assert {name: (job.slices, job.change) for name, job in before.items()} == {
        "big": (True, None), "hourly": (False, None), "priced": (None, None),
    }  # fmt: skip
    version = freeze(project, data, SystemClock())
    loaded = load_project(project)
    for name in ("big", "hourly"):
        fixed = Fixed(name, "1", version.sha, {}, name, 1, 4, remembered(spark, loaded, name))
        write_fixed(data / "jobs" / f"{name}@1", fixed)
    (project / "jobs.py").write_text(
        JOBS.replace("cents > 1000", "cents > 2000").replace("return totals.", "every = totals\n    return every.")
    )
    (project / "mainstem.toml").write_text(
        '[topics.orders]\npartitions = 3\nschema = "orders.avsc"\n[jobs.priced]\nevery = "on demand"\n'
    )
    it = plan(load_project(project), spark, topics={}, data=data)
    assert [(job.name, job.change) for job in it.jobs] == [
        ("big", "data selection"), ("hourly", "transparent"), ("priced", None),
    ]  # fmt: skip
    told = "\n".join(it.changes)
    assert "as version 2; of the edit: data selection, it lets other rows through" in told
    assert "as version 2; of the edit: transparent, it means the same" in told
    assert "job priced@1 runs on demand: `mainstem job run priced --from TIME --to TIME`" in told


def remembered(spark, project, name):
    """The analysis of a job as its first start wrote it down."""
    order = TopicSchema("orders", json.dumps(ORDER), 1, {})
    rows = row_type(spark, order)
    inputs = project.inputs[name]
    types = {each.parameter: rows for each in inputs}
    times = {each.parameter: None for each in inputs}
    return remember(analyse(spark, project.jobs[name], inputs, types, times, project.directory), {})


def test_what_would_change_against_what_runs(spark, project, tmp_path):
    data = tmp_path / "data"
    version = freeze(project, data, SystemClock())
    for name in ("big", "hourly", "priced"):
        write_fixed(data / "jobs" / f"{name}@1", Fixed(name, "1", version.sha, {}, name, 1, 4))
    topics = {name: TopicDescription(name, 3, 1) for name in ("orders", "big", "hourly", "priced")}
    topics["prices"] = TopicDescription("prices", 1, 1)
    price = {
        "type": "record",
        "name": "Price",
        "fields": [{"name": "id", "type": "long"}, {"name": "euros", "type": "double"}],
    }
    fields = [
        {"name": name, "type": ["null", kind], "default": None} for name, kind in (("id", "long"), ("cents", "string"))
    ]
    registry = Registered(prices_value=price, big_value=ORDER | {"fields": fields})

    it = plan(load_project(project), spark, registry=registry, topics=topics, data=data)
    assert it.jobs[2].determinism == "batch-dependent"
    assert it.changes == [
        "change the schema of topic big (added: at; of another type: cents)",
        "register a schema for topic hourly",
        "register a schema for topic priced",
    ]

    (project / "jobs.py").write_text(JOBS.replace("1000", "2000"))
    edited = plan(load_project(project), spark, registry=registry, topics=topics, data=data)
    told = [change for change in edited.changes if change.startswith("job ")]
    assert len(told) == 1  # nothing of the others was edited
    assert edited.changes == [*told, *it.changes[1:]]  # the frozen code registers no schema of the edited one
    assert told[0] == (
        f"job big@1 goes on with its frozen code {version.sha} (changed since: jobs.py); "
        "`mainstem job reprocess big` runs the edited code beside it, as version 2"
    )
    (big,) = [topic for topic in edited.topics if topic.name == "big"]
    assert [column.name for column in big.columns] == ["id", "cents"]

    renamed = JOBS.replace("def hourly", "def by_hour")
    (project / "jobs.py").write_text(renamed)
    changes = plan(load_project(project), spark, topics=topics, data=data).changes
    refused, goes_on = [change for change in changes if "hour" in change]
    assert refused == (
        "REFUSED: job by_hour@1 writes topic hourly, as job hourly@1 does; "
        "`mainstem job retire hourly 1` stops that one for good"
    )
    assert goes_on == (
        f"job hourly@1 goes on with its frozen code {version.sha}, though the project has no such job; "
        "`mainstem job retire hourly 1` stops it for good"
    )

    (project / "jobs.py").write_text(JOBS)
    (data / "jobs" / "priced@1" / RETIRED_FILE).touch()
    refused = f"REFUSED: job priced@1 was retired; {instead_of_retired('priced')}"
    assert refused in plan(load_project(project), spark, registry=registry, topics=topics, data=data).changes


def test_what_a_version_other_than_the_first_writes_is_planned_and_who_reads_what_nobody_writes_is_told(
    spark, project, tmp_path
):
    """`big` was promised, which nobody made, and `hourly` waited for it for ever."""
    with (project / "mainstem.toml").open("a") as file:
        file.write('[jobs.big]\nversion = "2"\n')
    it = plan(load_project(project), spark, topics={}, data=tmp_path)
    assert {topic.name: (topic.producer, topic.readers) for topic in it.topics if "big" in topic.name} == {
        "big": ("big", ["hourly"]),
        "big.v2": ("big", []),
    }
    told = (
        "job hourly@1 gets nothing new: topic big is that of big@1, which does not run; big@2 writes big.v2; "
        'declare topic("big.v2") in the code, with partitions = 3 under [topics."big.v2"], and read that, '
        'or set version = "1" under [jobs.big]'
    )
    assert [change for change in it.changes if "big" in change] == [
        "create topic big.v2 (stream, partitions: 3)",
        "start job big@2 from the beginning of its inputs",
        told,
    ]
    write_fixed(tmp_path / "jobs" / "big@1", Fixed("big", "1", "c0de", {}, "big", 1, 4))
    registry = Registered(big_value=ORDER)
    it = plan(load_project(project), spark, registry=registry, topics={}, data=tmp_path)
    assert not [change for change in it.changes if "gets nothing" in change]
    assert "register a schema for topic big.v2" in it.changes

    (tmp_path / "jobs" / "big@1" / RETIRED_FILE).touch()
    with (project / "mainstem.toml").open("a") as file:
        file.write('[topics."big.v2"]\npartitions = 3\n')
    (project / "jobs.py").write_text(
        JOBS.replace("hourly(big)", "hourly(newer)").replace("big.groupBy", "newer.groupBy")
        + 'newer = topic("big.v2")\n'
    )
    it = plan(load_project(project), spark, topics={}, data=tmp_path)
    assert [(topic.name, topic.producer) for topic in it.topics if "big" in topic.name] == [("big.v2", "big")]
    assert [change for change in it.changes if "topic big" in change] == ["create topic big.v2 (stream, partitions: 3)"]


def test_a_job_that_cannot_run_is_told_before_it_does(spark, project):
    (project / "jobs.py").write_text(JOBS.replace('"cents > 1000"', '"pounds > 1000"'))
    with pytest.raises(BadDeclaration, match=r"jobs\.py:\d+: big: .*pounds"):
        plan(load_project(project), spark)


def test_a_wrong_schema_is_told_with_its_file_and_topic(project):
    (project / "orders.avsc").write_text(json.dumps(ORDER).replace('"long"', '"lnog"', 1))
    with pytest.raises(BadSetting, match=rf"^{project}/orders\.avsc: schema of topic orders: /fields/0/type: unknown"):
        plan(load_project(project), None)


def test_a_state_that_will_be_moved_is_told(spark, project, tmp_path):
    data, sha = tmp_path / "data", freeze(project, tmp_path / "data", SystemClock()).sha
    for name in ("big", "hourly"):
        known = {"analysis": {"stateful": "an aggregation" if name == "hourly" else None}}
        write_fixed(
            data / "jobs" / f"{name}@1", Fixed(name, "1", sha, {}, name, 1, 4, analysis=known | {"made_with": {}})
        )
    with (project / "mainstem.toml").open("a") as settings:
        settings.write("[jobs.hourly]\nstate_partitions = 8\n[jobs.big]\nstate_partitions = 8\n")
    changes = plan(load_project(project), spark, topics={}, data=data).changes
    assert [each for each in changes if "the state" in each] == [
        "move the state of job hourly@1 from 4 partitions into 8"
    ]


def test_a_job_that_may_have_all_places_of_spark_is_named(project, spark):
    settings = '[topics.orders]\npartitions = 8\nschema = "orders.avsc"\n'
    (project / "mainstem.toml").write_text(settings)
    loaded = load_project(project)
    assert plan(loaded, spark, room=8).warnings == []
    (project / "mainstem.toml").write_text(settings + f"[jobs.{loaded.order[0]}]\ntasks = 8\n")
    loaded = load_project(project)
    (found,) = plan(loaded, spark, room=8).warnings
    assert found.startswith(f"job {loaded.order[0]} reads with 8 tasks")
