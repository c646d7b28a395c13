"""Who views a job, and who reads of it: a producer and a reader are added while nothing that is there is touched."""

import hashlib
import importlib.util
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from mainstem.client.catalog import entries, read_catalog
from mainstem.client.connection import Connection
from mainstem.process.project import load_project
from mainstem.standalone.planned import planned_now
from tests.support.commands import mainstem
from tests.support.node import Node, wait_for
from tests.support.repository import ROOT

EXAMPLE = ROOT / "examples" / "job_views"
ADDED = ("producers/mobile.py", "readers/reach.py")
FEW_ROWS = """
[spark.settings]
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"

""" + "".join(f"[jobs.{name}]\nstate_partitions = 1\n" for name in load_project(EXAMPLE).jobs if name != "reach")
"""Compiling code for a batch takes longer than going through some rows without; so does state in many parts."""
NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """As it was before there were telephones."""
    copy = tmp_path / "project"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__", ".*", "tests"))
    for name in ADDED:
        (copy / name).unlink()
    with (copy / "mainstem.toml").open("a") as file:
        file.write(FEW_ROWS)
    return copy


def add_what_came_later(project: Path) -> None:
    for name in ADDED:
        shutil.copy(EXAMPLE / name, project / name)


def files(project: Path) -> dict[str, str]:
    """What is in each file."""
    found = (path for path in project.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def producer(project: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, project / "producers" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def what_it_means(project: Path) -> dict[str, Any]:
    """All that `plan` says of each job, but where it is declared and that it starts."""
    planned = planned_now(project, project / ".mainstem", None).jobs
    return {job.name: msgspec.structs.replace(job, place=Path(job.place).name) for job in planned}


@pytest.mark.spark
@pytest.mark.usefixtures("spark_runs_already")
def test_a_file_makes_a_reader_and_the_others_mean_what_they_meant(project: Path) -> None:
    contents, before = files(project), what_it_means(project)
    assert "reach" not in before
    add_what_came_later(project)
    after = what_it_means(project)
    assert after.keys() - before.keys() == {"reach"}
    assert {name: after[name] for name in before} == before
    assert {name: told for name, told in files(project).items() if name not in ADDED} == contents


def counted(views: list[dict[str, Any]], kind: str, *columns: str) -> dict[Any, int]:
    """How many views of a kind there are by some columns."""
    found: dict[Any, int] = {}
    for view in views:
        key = tuple(view[column] for column in columns)
        found[key] = found.get(key, 0) + (view["kind"] == kind)
    return found


def last_rows(topic: str, column: str, *key: str) -> Callable[[Node], dict[Any, Any]]:
    """A look at a table: the values of one column by those of its key."""
    return lambda node: {tuple(row[part] for part in key): row[column] for row in node.values_of(topic)}


def warehouse(node: Node) -> int:
    table = str(node.data / "tables" / "job_views")
    return int(DeltaTable(table).to_pyarrow_table().num_rows) if DeltaTable.is_deltatable(table) else 0


# What each reader that was there from the first makes of the views, and the same from the views themselves; all of a
# place are of one minute. One after the other: to look at all, again and again, would hold up what is waited for.
READERS: list[tuple[Callable[[Node], Any], Callable[[list[dict[str, Any]]], Any]]] = [
    (warehouse, len),
    (last_rows("posters.jobs", "displays", "job_id"), lambda views: counted(views, "display", "job_id")),
    (
        last_rows("posters.totals", "applications", "poster_id"),
        lambda views: counted(views, "application", "poster_id"),
    ),
    (last_rows("monitoring.display_rate", "displays", "place"), lambda views: counted(views, "display", "place")),
    (
        last_rows("monitoring.application_rate", "applications", "place"),
        lambda views: counted(views, "application", "place"),
    ),
    (last_rows("security.scrapers", "jobs", "viewer_id"), lambda _: {(13,): 101}),
    (lambda node: [*last_rows("recommendation.caps", "job_id", "viewer_id", "job_id")(node)], lambda _: [(7, 1)]),
]


def wait_for_readers(node: Node, views: list[dict[str, Any]]) -> None:
    for found, expected in READERS:
        wait_for(lambda found=found, expected=expected: found(node) == expected(views), 240)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_producer_and_a_reader_are_added_while_the_others_go_on_as_they_were(project: Path, tmp_path: Path) -> None:
    contents = files(project)
    site = producer(project, "site")
    views = [
        *(site.view("impression", 1, 5, 7, NOON) for _ in range(3)),
        *(site.view("display", job, 5, 7, NOON) for job in (1, 2)),
        site.view("application", 2, 5, 7, NOON),
        *(site.view("display", job, 6, 13, NOON) for job in range(100, 201)),
    ]
    with Node(project, tmp_path / "data") as node:
        site.record(node.state["gateway"], views)
        wait_for_readers(node, views)
        candidates = [{"viewer_id": 7, "job_id": job, "score": 0.5, "at": NOON.isoformat()} for job in (1, 2)]
        node.post("recommendation.candidates/events", candidates)
        wait_for(lambda: [row["job_id"] for row in node.values_of("recommendation.recommended")] == [2], 120)
        started = versions(node)
        node.stop()

    add_what_came_later(project)
    with Node(project, tmp_path / "data") as node:
        telephone = producer(project, "mobile").Telephone(viewer=8)
        for kind, job in [("display", 1), ("display", 2), ("display", 2), ("application", 1)]:
            telephone.show(kind, job, 5, NOON + timedelta(minutes=1))
        views += telephone.kept
        telephone.send(node.state["gateway"])
        wait_for_readers(node, views)
        # Whoever came last has read the views of the site from the first on.
        displays = [view for view in views if view["kind"] == "display"]
        reach = last_rows("reach", "displays", "job_id", "place")
        wait_for(lambda: reach(node) == counted(displays, "display", "job_id", "place"), 240)
        assert {job: told for job, told in versions(node).items() if job != "reach"} == started
        audit = mainstem("audit", "--project", project, "--data", tmp_path / "data")
        assert audit.returncode == 0, audit.stdout
        node.stop()
    assert {name: told for name, told in files(project).items() if name not in ADDED} == contents


def versions(node: Node) -> dict[str, Any]:
    """The versions of each job that were started, with the code that they run."""
    found = entries(read_catalog(Connection(node.state["bootstrap"])), "job")
    assert load_project(EXAMPLE).jobs.keys() >= found.keys()
    return {job: entry["versions"] for job, entry in found.items()}
