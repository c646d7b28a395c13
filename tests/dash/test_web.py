import asyncio

import msgspec
import pytest

from mainstem.client.errors import UnknownTopic
from mainstem.core import Retriable, UserError
from mainstem.dash import web
from mainstem.web.threads import Overloaded


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownTopic("no"), 404, "not_found"),
        (web.UnknownJob("no"), 404, "not_found"),
        (UserError("no"), 400, "bad_request"),
        (web.Busy("no"), 409, "busy"),
        (web.Changed("no"), 409, "changed"),
        (Overloaded("no"), 429, "overloaded"),
        (Retriable("no", hint="wait"), 503, "not_reached"),
    ],
)
def test_errors_have_their_codes(error, status, code):
    answer = web.told(error)
    assert answer.status_code == status
    hint = {"hint": error.hint} if error.hint else {}
    assert msgspec.json.decode(answer.body) == {"error": {"code": code, "message": "no", **hint}}


def test_only_files_of_the_package_are_given():
    assert web.file("style.css").status_code == 200
    assert web.file("../web.py").status_code == web.file("none").status_code == 404


@pytest.mark.parametrize("name", ["path", "topic", "job", "view"])
def test_every_page_has_the_frame_and_its_own_script(name):
    answer = asyncio.run(web.page(name)(None))
    text = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/html")
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert "$" not in text
    assert f'src="/static/{name}.js"' in text
    assert web.file(f"{name}.js").status_code == 200
    assert (web.PAGES / f"{name}.html").read_text() in text


def test_a_number_is_one():
    assert (web.number(None, "n"), web.number("7", "n")) == (None, 7)
    with pytest.raises(UserError, match="n: expected a number, found '-1'"):
        web.number("-1", "n")
