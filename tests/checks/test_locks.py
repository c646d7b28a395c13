"""The lock files agree with pyproject.toml and with each other, and everything in them can be checked."""

import re
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.connect import LOCK as CONNECT_LOCK
from conformance.streams import LOCK as STREAMS_LOCK
from mainstem.process.jars import SPARK_LOCK, read_lock
from tests.support.kafka_tools import LOCK as KAFKA_LOCK
from tests.support.repository import ROOT, pyproject

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
RIVAL_LOCKS = sorted((ROOT / "requirements" / "rivals").glob("*.txt"))  # each of an environment of its own
EXTRAS = (
    "gateway",
    "postgres",
    "spark",
    "serve",
    "oauth",
    "demo",
)  # what requirements/dev.txt holds, as `make lock` says
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; (.+?))? \\$", re.MULTILINE)


def locked(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Name -> (version, marker) of each entry."""
    entries: dict[str, list[tuple[str, str]]] = {}
    for name, version, marker in _ENTRY.findall(path.read_text()):
        entries.setdefault(canonicalize_name(name), []).append((version, marker))
    return entries


def wanted() -> list[Requirement]:
    project = pyproject()["project"]
    texts = [*project["dependencies"], *pyproject()["dependency-groups"]["dev"]]
    for extra in EXTRAS:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_what_pyproject_wants_is_locked(requirement: Requirement) -> None:
    entries = locked(ROOT / "requirements" / "dev.txt").get(canonicalize_name(requirement.name), [])
    assert entries, f"{requirement.name} is not in requirements/dev.txt: run make lock"
    assert all(requirement.specifier.contains(version, prereleases=True) for version, _ in entries)


def test_what_the_inputs_want_is_locked() -> None:
    for source in sorted((ROOT / "requirements").rglob("*.in")):
        entries = locked(source.with_suffix(".txt"))
        for line in source.read_text().splitlines():
            requirement = Requirement(line.split("#")[0].strip())
            assert requirement.specifier.contains(entries[canonicalize_name(requirement.name)][0][0]), line


def test_the_java_of_the_set_up_is_the_one_of_the_extra() -> None:
    [line] = (ROOT / "requirements" / "java.in").read_text().splitlines()
    assert [line.split("#")[0].strip()] == pyproject()["project"]["optional-dependencies"]["java"]


@pytest.mark.parametrize("path", [*LOCKS, *RIVAL_LOCKS], ids=lambda path: path.name)
def test_every_entry_has_hashes_and_no_address(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    entries = [block for block in re.split(r"\n(?=\S)", text) if block.strip()]
    assert [block.split()[0] for block in entries if "--hash=sha256:" not in block] == []
    assert len(entries) == sum(len(found) for found in locked(path).values())


def test_a_package_has_one_version_in_all_lock_files() -> None:
    versions: dict[str, set[str]] = {}
    for path in LOCKS:
        for name, entries in locked(path).items():
            current = {v for v, marker in entries if not marker or Marker(marker).evaluate()}
            versions.setdefault(name, set()).update(current)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_each_dependency_has_its_reason() -> None:
    """Beside it in pyproject.toml, once: an extra may repeat a name."""
    text = (ROOT / "pyproject.toml").read_text()
    reasons: dict[str, bool] = {}
    for name, comment in re.findall(r'^  "([A-Za-z0-9_-]+)(?:\[[^\]]*\])?[=<>][^"]*",?(.*)$', text, re.MULTILINE):
        reasons[name] = reasons.get(name, False) or "#" in comment
    assert {canonicalize_name(r.name) for r in wanted()} <= {canonicalize_name(name) for name in reasons}
    assert [name for name, given in reasons.items() if not given] == []


def test_jars_fit_the_packages() -> None:
    jars = {jar.name: jar.version for jar in read_lock(SPARK_LOCK)}
    [(spark, _)] = locked(ROOT / "requirements" / "dev.txt")["pyspark"]
    assert jars["spark-sql-kafka-0-10_2.13"] == spark
    assert f"delta-spark_{spark.rpartition('.')[0]}_2.13" in jars


@pytest.mark.parametrize("path", [SPARK_LOCK, KAFKA_LOCK, STREAMS_LOCK, CONNECT_LOCK], ids=lambda path: path.name)
def test_a_lock_of_jars_names_each_once(path: Path) -> None:
    jars = read_lock(path)
    assert len({jar.name for jar in jars}) == len(jars) > 0
