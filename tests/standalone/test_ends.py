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
