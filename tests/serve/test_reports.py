"""What views have applied is in the audit's books, as what a sink has read is."""

import pytest

from mainstem.audit.report import audit
from mainstem.client.catalog import read_catalog, users_of, write_catalog
from mainstem.serve import keeper
from mainstem.standalone.overview import overview
from tests.serve.fleet import header
from tests.serve.played import PlayedJob, cutover
from tests.support.waiting import wait_until

VIEWS = ("planes", "names", "flights")


@pytest.fixture(autouse=True)
def no_node(fleet):
    yield
    write_catalog(fleet.connection, {"node:answers": None})


def verdicts(fleet, topic):
    """Of the views, by their readers, all partitions together."""
    found = {}
    for line in audit(fleet.connection, [topic]):
        if line.tier == "reader":
            found.setdefault(line.name, set()).add(line.verdict.value)
    return found


def ask(http, token):
    http.get("/views/planes/rows", headers=header(token)).raise_for_status()
    http.get("/views/names/search?q=x", headers=header(token)).raise_for_status()
    http.post("/views/flights/query", json={"sql": "SELECT 1"}, headers=header(token)).raise_for_status()


def test_the_books_of_views_balance_and_those_of_a_view_that_is_no_more_are_not_asked_for(fleet, tmp_path):
    balanced = {f"view {view}@answers": {"balanced"} for view in VIEWS}
    with fleet.node(tmp_path) as http:
        http.node.announce("127.0.0.1:1")
        ask(http, fleet.write(fleet.planes, *((f"N{number}", "x", number) for number in range(20))))
        ask(http, fleet.write(fleet.planes, ("N1", None, None), ("N2", "y", 2)))
        wait_until(lambda: verdicts(fleet, fleet.planes) == balanced, "all is told")
        (line,) = [v for v in overview(tmp_path, fleet.connection).views if (v.node, v.view) == ("answers", "planes")]
        assert (line.topics, line.lag, line.rows) == ({fleet.planes: fleet.planes}, 0, 21)
        assert "view planes@answers" in users_of(read_catalog(fleet.connection), fleet.planes)[1]
    token = fleet.write(fleet.planes, ("N3", "x", 33))
    assert verdicts(fleet, fleet.planes) == {reader: {"balanced", "in flight"} for reader in balanced}
    with fleet.node(tmp_path, planes={"kind": "key-value", "topics": fleet.planes, "versions": True}) as http:
        http.node.announce("127.0.0.1:1")
        http.get("/views/planes/rows", headers=header(token)).raise_for_status()
        wait_until(
            lambda: verdicts(fleet, fleet.planes) == {"view planes@answers": {"balanced"}}, "the others are gone"
        )


def test_a_view_that_misses_a_record_is_wrong(fleet, tmp_path, monkeypatch):
    arrived = keeper.arrived

    def some(*given):
        return [each for each in arrived(*given) if each.error() is not None or each.key() != b"N7"]

    monkeypatch.setattr(keeper, "arrived", some)
    with fleet.node(tmp_path) as http:
        http.node.announce("127.0.0.1:1")
        fleet.write(fleet.planes, *((f"N{number}", "x", number) for number in range(20)))
        wait_until(
            lambda: all("WRONG" in verdicts(fleet, fleet.planes).get(f"view {view}@answers", ()) for view in VIEWS),
            "the audit says it",
        )


def test_what_is_said_of_a_version_that_nobody_can_come_back_to_does_not_count(fleet, live_registry, tmp_path):
    job = PlayedJob(fleet, live_registry)
    job.start("1")
    job.write("N1", 1)
    with fleet.node(tmp_path, seats={"kind": "key-value", "topics": job.name}) as http:
        http.node.announce("127.0.0.1:1")
        row = "/views/seats/row?tailnum=N1"
        http.get(row, headers=header(job.run("1", ("N1", 1)))).raise_for_status()
        wait_until(lambda: verdicts(fleet, job.name) == {"view seats@answers": {"balanced"}}, "it is told")
        job.start("2")
        job.run("2", ("N1", 10))
        http.get(row, headers=header(cutover(fleet, (job, "2")))).raise_for_status()
        wait_until(lambda: "view seats@answers" in verdicts(fleet, job.output("2")), "the other one is told")
        assert "view seats@answers" in verdicts(fleet, job.name)  # for the way back
        job.retire("1")
        wait_until(lambda: "view seats@answers" not in verdicts(fleet, job.name), "it is not expected any more")
