import msgspec
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient

from mainstem.core import MainstemError, UserError
from mainstem.web.answers import check_once, error_answer, json_answer, no_route


def test_an_answer_is_json_with_its_headers():
    answer = json_answer(201, {"a": [1]}, {"X": "y"})
    assert (answer.status_code, answer.body, answer.headers["x"]) == (201, b'{"a":[1]}', "y")
    assert answer.headers["content-type"] == "application/json"


def test_an_error_has_a_code_a_line_and_what_to_do():
    answer = error_answer(400, "bad", MainstemError("no"), rows=2)
    assert msgspec.json.decode(answer.body) == {"error": {"code": "bad", "message": "no"}, "rows": 2}
    answer = error_answer(400, "bad", MainstemError("no", hint="do"))
    assert msgspec.json.decode(answer.body)["error"]["hint"] == "do"


async def answer_all(request):
    check_once(request)
    return json_answer(200, {})


def test_what_there_is_nothing_for_is_told_in_json_too():
    async def forbid(request):
        raise HTTPException(403, "no")

    routes = [Route("/there", answer_all, methods=["POST", "PUT"]), Route("/forbidden", forbid)]
    app = Starlette(routes=routes, exception_handlers={HTTPException: no_route})
    client = TestClient(app)
    nothing, wrong, forbidden = client.get("/not/there"), client.get("/there"), client.get("/forbidden")
    assert [each.status_code for each in (nothing, wrong, forbidden)] == [404, 405, 403]
    assert nothing.json()["error"] == {"code": "not_found", "message": "/not/there: there is nothing at this path"}
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert set(wrong.headers["Allow"].split(", ")) == {"POST", "PUT"}
    assert wrong.json()["error"]["message"] == f"/there: expected {wrong.headers['Allow']}, found GET"
    assert forbidden.json()["error"] == {"code": "failed", "message": "no"}


def test_a_parameter_that_is_there_twice_is_refused():
    def asked(query):
        return Request({"type": "http", "query_string": query, "headers": []})

    check_once(asked(b"a=1&b=1"))
    with pytest.raises(UserError, match="b: expected it once, found it 2 times"):
        check_once(asked(b"a=1&b=1&b=1"))
