import asyncio

import pytest

from mainstem.client.errors import UnknownTopic
from mainstem.core import Retriable, UserError
from mainstem.dash import web
from mainstem.web.threads import Overloaded


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownTopic("no"), 404),
        (UserError("no"), 400),
        (Overloaded("no"), 429),
        (Retriable("no", hint="wait"), 503),
    ],
)
def test_errors_have_their_codes(error, code):
    answer = web.told(error)
    assert answer.status_code == code
    assert b'"message":"no"' in answer.body


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
