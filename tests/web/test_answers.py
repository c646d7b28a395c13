import msgspec

from mainstem.core import MainstemError
from mainstem.web.answers import error_answer, json_answer


def test_an_answer_is_json_with_its_headers():
    answer = json_answer(201, {"a": [1]}, {"X": "y"})
    assert (answer.status_code, answer.body, answer.headers["x"]) == (201, b'{"a":[1]}', "y")
    assert answer.headers["content-type"] == "application/json"


def test_an_error_has_a_code_a_line_and_what_to_do():
    answer = error_answer(400, "bad", MainstemError("no"), rows=2)
    assert msgspec.json.decode(answer.body) == {"error": {"code": "bad", "message": "no"}, "rows": 2}
    answer = error_answer(400, "bad", MainstemError("no", hint="do"))
    assert msgspec.json.decode(answer.body)["error"]["hint"] == "do"
