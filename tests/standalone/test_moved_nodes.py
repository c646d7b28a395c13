"""`job cutover` returns when the views of serving nodes have followed, or says which have not."""

import pytest

from mainstem.client.catalog import write_catalog
from mainstem.core import SystemClock
from mainstem.process.cutover import Move, Moves
from mainstem.standalone.moved_nodes import NODES_SECONDS, views_of, wait_for_nodes
from tests.serve.fleet import Fleet
from tests.serve.played import PlayedJob, cutover
from tests.support.live import live_registry, log_connection, registry_url
from tests.support.ports import free_port

__all__ = ["live_registry", "log_connection", "registry_url"]


@pytest.fixture
def job(log_connection, live_registry):
    job = PlayedJob(Fleet(log_connection, live_registry), live_registry)
    for version in "12":
        job.start(version)
        job.write("N1", 1)
        job.run(version, ("N1", 1))
    return job


def moves_of(job, basis):
    return Moves([Move(job.name, "2", "1", job.output("2"), {})], basis)


def test_only_views_that_read_a_job_that_was_moved_are_asked():
    views = {"sums": {"kind": "sql", "topics": ["sums", "x"]}, "others": {"kind": "sql", "topics": ["sums.v2"]}}
    catalog = {"node:n": {"address": "h:1", "views": views}, "node:m": {"views": views}}
    moves = Moves([Move("sums", "2", "1", "sums.v2", {})], "")
    assert views_of(catalog, moves) == [("n", "sums", "h:1")]


def test_it_returns_when_the_views_have_moved_and_says_which_do_not_answer(job, tmp_path):
    fleet = job.fleet
    views = {"seats": {"kind": "key-value", "topics": job.name}, "planes": {"kind": "sql", "topics": fleet.planes}}
    with fleet.node(tmp_path, **views) as http:
        about = {name: {"kind": view["kind"], "topics": [view["topics"]]} for name, view in views.items()}
        running = {"address": str(http.base_url.netloc, "ascii"), "views": about}
        gone = {"address": f"127.0.0.1:{free_port()}", "views": about}
        write_catalog(fleet.connection, {"node:answers": running, "node:gone": gone})
        found = wait_for_nodes(fleet.connection, moves_of(job, cutover(fleet, (job, "2")).token))
        assert [(each.node, each.view, each.moved) for each in found] == [
            ("answers", "seats", True), ("gone", "seats", False),
        ]  # fmt: skip
        assert "it does not answer" in found[1].why
        assert http.get("/views/seats/row?tailnum=N1").json()["versions"] == {job.name: "2"}
        write_catalog(fleet.connection, {"node:gone": None})


def test_a_view_that_has_not_moved_in_time_is_told(job, tmp_path):
    fleet = job.fleet
    with fleet.node(tmp_path, seats={"kind": "key-value", "topics": job.name}) as http:
        about = {"seats": {"kind": "key-value", "topics": [job.name]}}
        write_catalog(
            fleet.connection, {"node:answers": {"address": str(http.base_url.netloc, "ascii"), "views": about}}
        )
        http.node._builds._settle = lambda: None
        (late,) = wait_for_nodes(fleet.connection, moves_of(job, cutover(fleet, (job, "2")).token), timeout_seconds=0.2)
        assert not late.moved
        assert "not as far as the token" in late.why

        def given_up(_):
            raise InterruptedError

        began = SystemClock().monotonic()
        with pytest.raises(InterruptedError):  # after one round, not after a minute
            wait_for_nodes(fleet.connection, moves_of(job, cutover(fleet, (job, "1")).token), pause=given_up)
        assert SystemClock().monotonic() - began < NODES_SECONDS / 2
        write_catalog(fleet.connection, {"node:answers": None})
