"""The indexes of `examples/recipes`, RocksDB's and tantivy's, on a real log: when their disk is lost, what was stored
before still finds what comes after.
"""

import shutil

import pytest

from tests.support.jobs import driver_of, put_rows, read_rows, run_until
from tests.support.repository import ROOT
from tests.support.shop import drivers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers"]  # a fixture

RECIPES = ROOT / "examples" / "recipes"
SETTINGS = """
[project]
jobs = ["indexes.py"]
[topics."news.queries"]
key = "query_id"
schema = "schemas/query.avsc"
[topics."news.articles"]
key = "article_id"
schema = "schemas/article.avsc"
"""


def test_what_was_stored_is_found_after_the_disk_was_lost(
    spark, log_connection, registry_url, live_registry, tmp_path, drivers
):
    project, data = tmp_path / "project", tmp_path / "data"
    shutil.copytree(RECIPES / "schemas", project / "schemas")
    shutil.copy(RECIPES / "indexes.py", project)
    (project / "mainstem.toml").write_text(SETTINGS)

    def start():
        drivers.append(driver_of(spark, project, log_connection, registry_url, data))
        drivers[-1].start()

    def put(what, *rows):
        schema = (project / "schemas" / f"{what}.avsc").read_text()
        topic = "news.queries" if what == "query" else "news.articles"
        put_rows(log_connection, live_registry, topic, schema, rows, (f"{what}_id",))

    def pairs(topic, *columns):
        return sorted(tuple(row[column] for column in columns) for row in read_rows(log_connection, topic))

    def until(alerts, alike):
        run_until(
            drivers[-1],
            lambda: (
                pairs("news.alerts", "query_id", "article_id") == alerts
                and pairs("news.like_earlier_ones", "article_id", "like") == alike
            ),
        )

    start()
    put("query", {"query_id": "boats", "words": "boat"}, {"query_id": "storms", "words": "storm coast"})
    run_until(drivers[-1], lambda: len(read_rows(log_connection, "news.queries_stored")) == 2)
    put("article", {"article_id": "1", "text": "a storm at the coast"})
    until([("storms", "1")], [])
    put("query", {"query_id": "storms", "words": "hills"})
    run_until(drivers[-1], lambda: len(read_rows(log_connection, "news.queries_stored")) == 3)
    drivers[-1].stop()

    indexes = list((data / "jobs").glob("*/index"))
    assert {index.parent.name for index in indexes} == {"alerts@1", "like_earlier_ones@1"}
    for index in indexes:
        shutil.rmtree(index)
    start()
    put("article", {"article_id": "2", "text": "boat and storm and coast"})
    until([("boats", "2"), ("storms", "1")], [("2", "1")])
    drivers[-1].stop()

    for index in indexes:
        for file in (each for each in index.rglob("*") if each.is_file()):
            file.write_bytes(b"no index" * 100)
    start()
    put("article", {"article_id": "3", "text": "hills"})
    until([("boats", "2"), ("storms", "1"), ("storms", "3")], [("2", "1")])
    put("article", {"article_id": "4", "text": "hills and boat"})
    until(
        [("boats", "2"), ("boats", "4"), ("storms", "1"), ("storms", "3"), ("storms", "4")],
        [("2", "1"), ("4", "2"), ("4", "3")],
    )
