"""What the analysis says of one job of a project of orders, refunds and customers."""

from textwrap import dedent

import pytest

from mainstem.process.analysis import analyse
from mainstem.process.declare import BadDeclaration
from mainstem.process.imports import ship
from mainstem.process.project import load_project

HEAD = """\
from mainstem.process import changelog, stream, table, topic
from pyspark.sql import functions as F

orders = topic("orders", event_time="at")
refunds = topic("refunds", event_time="at")
customers = changelog("customers", key="id")
"""
ORDERS = "id long, customer long, cents long, at timestamp, note string"
TYPES = {"orders": ORDERS, "refunds": ORDERS, "customers": "id long, region string"}


def found(spark, directory, jobs):
    from pyspark.sql.types import StructType

    (directory / "mainstem.toml").touch()
    (directory / "jobs.py").write_text(HEAD + dedent(jobs))
    project = load_project(directory)
    ship(project.modules)
    job = project.jobs["job"]
    types = {each.parameter: StructType.fromDDL(TYPES[each.parameter]) for each in project.inputs["job"]}
    times = {each.parameter: project.topics[each.topic].event_time for each in project.inputs["job"]}
    return analyse(spark, job, project.inputs["job"], types, times, directory)


def check_refused(spark, directory, jobs, line, message):
    """That the job is refused with this message, and the line of `jobs` at which it is declared, or goes wrong."""
    with pytest.raises(BadDeclaration) as caught:
        found(spark, directory, jobs)
    assert message in str(caught.value)
    place = HEAD.count("\n") + line
    assert str(caught.value).startswith(f"{directory / 'jobs.py'}:{place}: ")
