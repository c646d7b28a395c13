import asyncio
import contextlib
import threading

import httpx
import pytest
from starlette.applications import Starlette

from mainstem.core import SystemClock, UserError
from mainstem.dash.jobs import Jobs, NoCommands
from mainstem.dash.operations import Done, Operations
from mainstem.dash.web import Changed, UnknownJob, own_threads
from tests.support.serving import served
from tests.support.waiting import wait_until


class Work:
    def __init__(self):
        self.go_on, self.asked = threading.Event(), []

    def knows(self, job):
        return job in ("sums", "counts")

    def check(self, kind, job, asked):
        if kind == "revert" and asked["version"] != "1":
            raise Changed("job sums: expected that a revert leads to version 2, found version 1")

    def versions(self, job):
        if job == "none":
            raise UnknownJob("job none: no such job runs, or has run")
        return [{"version": "1", "ready": True}]

    def run(self, kind, job, asked, going):
        self.asked.append((kind, job, asked))
        while not self.go_on.is_set():
            going.pause(0.001)
        return Done(["done"], result='{"equal":1152921504606846976}')


@pytest.fixture
def http():
    work, tasks, states = Work(), [], []
    operations, threads = Operations(work, states.append, SystemClock()), own_threads()

    @contextlib.asynccontextmanager
    async def lifespan(_):
        async with asyncio.TaskGroup() as group:
            tasks.append(group)
            yield
            operations.close()

    jobs = Jobs(work, operations, threads, lambda: tasks[0])
    with (
        served(Starlette(routes=jobs.routes(), lifespan=lifespan)) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        client.work, client.states = work, states
        yield client
    threads.close()


def test_a_button_begins_something_once(http):
    begun = http.post("/jobs/sums/cutover", json={"version": "2"})
    assert (begun.status_code, begun.json()["state"]) == (202, "running")
    again = http.post("/jobs/sums/revert", json={"version": "1"})
    assert (again.status_code, "goes on already" in again.json()["error"]["message"]) == (409, True)
    assert http.post(f"/operations/{begun.json()['id']}/give-up").status_code == 202
    wait_until(lambda: http.states[-1][0].state == "given up", "the cutover was given up")
    http.work.go_on.set()
    assert http.post("/jobs/sums/revert", json={"version": "1"}).status_code == 202
    wait_until(lambda: http.states[-1][0].state == "done", "the revert is done")
    assert [each[0] for each in http.work.asked] == ["cutover", "revert"]


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"version": 2}', b"\xff", b"[" * 5000, b'{"version": "2", "more": "x"}']
)
def test_what_is_no_version_is_refused(http, body):
    assert http.post("/jobs/sums/cutover", content=body).status_code == 400
    assert http.work.asked == []


def test_a_revert_that_leads_elsewhere_by_now_is_refused_at_the_door(http):
    """The page said "Revert to version 2?", and another one had moved readers since it was shown."""
    assert http.post("/jobs/sums/revert").status_code == 400  # it names the version that it promises
    refused = http.post("/jobs/sums/revert", json={"version": "2"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "changed")
    assert (http.work.asked, http.states) == ([], [])


def test_versions_are_compared_beside_what_else_goes_on(http):
    assert http.post("/jobs/sums/cutover", json={"version": "2"}).status_code == 202
    begun = http.post("/jobs/sums/diff", json={"left": "1", "right": "2"})
    assert (begun.status_code, begun.json()["title"]) == (202, "diff of job sums: version 1 to 2")
    assert http.post("/jobs/sums/diff", json={"left": "1"}).status_code == 400
    assert http.post("/jobs/sums/reprocess", json={"anyway": "yes"}).status_code == 202
    assert http.post("/jobs/counts/reprocess", json={"--yes": "yes"}).status_code == 400


def test_a_job_that_there_is_not_is_refused_at_the_door(http):
    for kind, body in [("revert", {"version": "1"}), ("diff", {"left": "1", "right": "2"})]:
        answer = http.post(f"/jobs/none/{kind}", json=body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            404,
            "job none: no such job runs, or has run",
        )
    assert (http.work.asked, http.states) == ([], [])


def test_what_an_operation_has_found_is_asked_for_by_its_number(http):
    http.work.go_on.set()
    begun = http.post("/jobs/sums/diff", json={"left": "1", "right": "2"}).json()
    wait_until(lambda: http.states[-1][0].state == "done", "the diff is done")
    found = http.get(f"/operations/{begun['id']}/result")
    assert (found.text, found.headers["content-type"]) == ('{"equal":1152921504606846976}', "application/json")
    assert http.get("/operations/99/result").status_code == 404
    assert http.get("/operations/x/result").status_code == 400


def test_an_operation_that_there_is_not_cannot_be_given_up(http):
    assert http.post("/operations/99/give-up").status_code == 404
    http.work.go_on.set()
    begun = http.post("/jobs/sums/revert", json={"version": "1"}).json()
    wait_until(lambda: http.states[-1][0].state == "done", "the revert is done")
    assert http.post(f"/operations/{begun['id']}/give-up").status_code == 202  # too late, without effect
    assert http.states[-1][0].state == "done"


def test_nothing_is_done_by_a_get(http):
    for path in ("/jobs/sums/cutover", "/jobs/sums/revert", "/operations/1/give-up"):
        assert http.get(path).status_code == 405


def test_versions_are_told(http):
    assert http.get("/jobs/sums/versions").json() == [{"version": "1", "ready": True}]
    answer = http.get("/jobs/none/versions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_a_dashboard_that_only_shows_says_so():
    with pytest.raises(UserError, match="nothing can be done"):
        NoCommands().run("cutover", "sums", {}, None)
    with pytest.raises(UserError, match="nothing can be done"):
        NoCommands().versions("sums")
    assert NoCommands().knows("sums")
