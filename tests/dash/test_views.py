import httpx
import pytest
from starlette.applications import Starlette

from mainstem.dash.views import Views
from mainstem.dash.web import own_threads
from tests.support.serving import served


@pytest.fixture(scope="module")
def http(views):
    threads = own_threads()
    with (
        served(Starlette(routes=Views(views.nodes, threads).routes())) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client
    threads.close()


def test_a_token_goes_to_the_node_and_one_comes_back(http, views):
    seen = []
    for number in range(10):
        basis = views.fleet.write(views.fleet.planes, ("N901", "CESSNA", number))
        answer = http.get("/views/answers/planes/row?tailnum=N901", headers={"Mainstem-Basis": basis.token})
        seen.append(answer.json()["row"]["seats"])
    assert seen == list(range(10))
    later = http.get(
        "/views/answers/names/search?q=cessna", headers={"Mainstem-Basis": answer.headers["Mainstem-Basis"]}
    )
    assert later.json()["total"] >= 1
    assert "set-cookie" not in later.headers


def test_what_the_node_refuses_comes_as_it_said(http):
    assert http.get("/views/answers/planes/row?tailnum=none").status_code == 404
    answer = http.post("/views/answers/flights/query", json={"sql": "DROP TABLE planes"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "path",
    [
        "/views/none/planes/rows",
        "/views/answers/none/about",
        "/views/answers/planes/health",
        "/views/answers/..%2Fopenapi.json/rows",
    ],
)
def test_nothing_else_is_asked(http, path):
    assert http.get(path).status_code == 404


def test_a_query_is_bounded_and_posted(http):
    assert http.post("/views/answers/flights/query", content=b"x" * (1 << 20 | 1)).status_code == 400
    assert http.get("/views/answers/flights/query").status_code == 405
