import msgspec
import pytest

from mainstem.process.plan import Column, Plan, PlannedJob, PlannedTopic
from mainstem.standalone.config import load_config
from mainstem.standalone.ends import with_ends

SETTINGS = """
[sources.fleet]
type = "postgres"
url = "postgresql://localhost/fleet"
tables = ["planes", "sales.orders"]

[sources.shop]
type = "postgres"
url = "postgresql://localhost/shop"

[sources.access]
type = "file"
path = "access.log"
topic = "access_log"

[sinks.lake]
type = "delta"
topics = "fleet.*"

[sinks.replica]
type = "postgres"
source = "fleet"
url = "postgresql://localhost/copy"
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "mainstem.toml").write_text(SETTINGS)
    return load_config(tmp_path, {})


def topic(name, producer=None, columns=None):
    return PlannedTopic(name, "stream", [], 1, None, producer, [], columns)


def job(name, inputs, output, determinism=None):
    return PlannedJob(
        name, "1", "", "jobs.py:1", inputs, [], output, None, [], None, None, None, determinism, "no schema yet", None
    )


def test_a_topic_is_written_by_a_source_a_job_or_the_collector_and_read_by_destinations(config):
    names = ["fleet.planes", "fleet.sales.orders", "fleet.parts", "shop.any", "shopping", "access_log", "weather"]
    plan = with_ends(Plan("p", "c0de", [*map(topic, names), topic("fleet_days", "days")], [], []), config)
    assert {each.name: (each.writer, each.destinations) for each in plan.topics} == {
        "fleet.planes": ("source fleet", ["sink lake", "sink replica"]),
        "fleet.sales.orders": ("source fleet", ["sink lake", "sink replica"]),
        "fleet.parts": ("collector", ["sink lake"]),
        "shop.any": ("source shop", []),
        "shopping": ("collector", []),
        "access_log": ("source access", []),
        "weather": ("collector", []),
        "fleet_days": ("job days", ["sink lake"]),
    }


def test_what_is_not_known_yet_is_known_once_the_sources_above_have_started(config):
    topics = [
        topic("fleet.planes"),
        topic("weather"),
        topic("access_log", columns=[Column("line", "string")]),
        topic("enriched", "enriched"),
        topic("hourly", "hourly"),
        topic("requests", "requests"),
    ]
    jobs = [
        job("enriched", {"planes": "fleet.planes", "weather": "weather"}, "enriched"),
        job("hourly", {"enriched": "enriched"}, "hourly"),
        job("requests", {"access_log": "access_log"}, "requests", "prefix-deterministic"),
    ]
    enriched, hourly, requests = with_ends(Plan("p", "c0de", topics, jobs, []), config).jobs
    told = "no schema yet; known once source fleet has started and topic weather has a schema"
    assert (enriched.reason, hourly.reason, requests.reason) == (told, told, "no schema yet")


def test_views_and_splices_are_shown_with_what_they_read_and_write(tmp_path):
    (tmp_path / "mainstem.toml").write_text(
        """
        [serve.answers]
        views.planes = { kind = "key-value", topics = "fleet.planes" }
        views.all = { kind = "search", topics = ["fleet.planes", "days"] }
        [serve.other]
        listen = "127.0.0.1:9611"
        views.totals = { kind = "sql", topics = "totals" }
        [splices."days.all"]
        job = "days"
        [splices.none]
        job = "of-another-project"
        """
    )
    columns = [Column("n", "bigint")]
    topics = [topic("fleet.planes"), topic("days.v2", "days", columns), topic("totals", "totals"), topic("totals.v2")]
    jobs = [
        msgspec.structs.replace(job("days", {"o": "fleet.planes"}, "days.v2", "exact"), version="2"),
        job("totals", {"days": "days.v2"}, "totals", "exact"),
    ]
    plan = Plan("p", "c0de", topics, jobs, [])
    found = with_ends(plan, load_config(tmp_path, {}), {"days.all", "fleet.planes"}).topics
    assert [(each.name, each.writer, each.destinations) for each in found] == [
        ("fleet.planes", "collector", ["view planes@answers", "view all@answers"]),
        # By the job's name a view means the version that is current, and a splice does too.
        ("days.v2", "job days", ["view all@answers", "splice days.all"]),
        ("totals", "job totals", ["view totals@other"]),
        ("totals.v2", "collector", []),
        ("days.all", "splice days.all", []),
    ]
    assert (found[-1].exists, found[-1].columns, found[-1].producer) == (True, columns, None)
    assert with_ends(plan, load_config(tmp_path, {})).topics[-1].exists is None
    assert with_ends(plan, load_config(tmp_path, {}), ()).topics[-1].exists is False
