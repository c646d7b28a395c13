"""The pages in a real Chromium."""

import itertools
import json

import httpx
import pytest

from mainstem.client.append import append
from mainstem.client.topics import ensure_topic
from mainstem.connect.gateway import Gateway
from mainstem.connect.gateway_config import GatewayConfig
from mainstem.dash.app import Dashboard
from mainstem.serve import app
from mainstem.standalone import dashboard_commands
from mainstem.standalone.dashboard import dashboard_state
from mainstem.standalone.dashboard_commands import DashboardCommands
from tests.dash.conftest import SCRIPT
from tests.dash.pages import PART, card, fill, version
from tests.support.serving import served
from tests.support.versions import write_read, write_versions

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def url(shop, views, tmp_path_factory):
    data, nodes = tmp_path_factory.mktemp("data"), views.nodes
    commands = DashboardCommands(data, data, shop.connection)
    dashboard = Dashboard(
        shop.connection, lambda: dashboard_state(data, shop.connection, "shop", nodes), nodes, commands
    )
    gateway = Gateway(shop.connection, GatewayConfig(), on_taken_over=lambda: None, doors=[dashboard])
    with served(gateway.app, timeout_graceful_shutdown=1) as url:
        yield url


@pytest.fixture
def opened(pages, url):
    return lambda path, **options: pages(url + path, **options)


def test_the_path_is_drawn_from_left_to_right(opened, shop):
    page = opened("/")
    page.wait_for("#link", "live")
    page.wait_for(card("shop.orders"), "offset 24")
    left = "(name => [...document.querySelectorAll('.card')].find(c => c.textContent.startsWith(name)).offsetLeft)"
    places = [page.run(f"{left}({name!r})") for name in ("shop", "shop.orders", "revenue_hourly", "lakehouse")]
    assert places == sorted(places)
    assert page.count("#edges path") >= 8
    page.click("#audit")
    page.wait_for("#verdict", "balanced")
    page.wait_for(card("revenue_hourly"), "balanced")


def test_rates_change_when_records_come(opened, shop):
    page = opened("/")
    page.wait_for(card("clicks"), "0/s")
    before = page.text(card("clicks"))
    shop.write("site", "clicks", [(None, {"path": "/new", "ms": n}) for n in range(500)])
    page.wait_for(f"{card('clicks')} .middle", "offset 9")
    rates = "document.querySelector('" + card("clicks") + " .middle').lastChild.textContent"
    assert page.text(card("clicks")) != before
    assert page.run(rates) not in ("", "0/s")
    assert page.count("#edges path.flows") >= 1


def test_a_topic_is_paged_by_clicks(opened, shop):
    page = opened("/")
    page.click(card("shop.orders"))
    page.wait_for("#records tbody tr")
    assert page.count("#records tbody tr") == 50
    first = page.text("#records tbody tr")
    page.click("#more", "Older")
    page.wait_for("#newest:not([hidden])")
    assert page.text("#records tbody tr") != first
    page.run("document.getElementById('partition').value = '1'; document.getElementById('from').value = '5'")
    page.click("#place button")
    page.wait_for("#more", "Newer")
    assert page.text("#records tbody tr td:nth-child(2)") == "5"


def first_offset(page):
    return page.text("#records tbody tr td:nth-child(2)")


def test_new_records_come_by_themselves_until_somebody_pauses(opened, shop):
    ensure_topic(shop.connection, "ticks", 1)
    page = opened("/topics/ticks")
    page.wait_for("#tail", "live")
    page.wait_for("#none:not([hidden])")
    append(shop.connection, "ticks", [(b"k", b'{"n":1}')])
    page.wait_for("#records .fresh .value", '{"n":1}')
    page.click("#pause", "Pause")
    page.wait_for("#tail", "paused")
    append(shop.connection, "ticks", [(b"k", b"%d" % n) for n in range(400)])
    page.wait_for("#summary", "offset 401")  # all else goes on
    assert page.count("#records tbody tr") == 1
    page.click("#pause", "Go on")
    page.wait_for("#tail", "live")
    page.wait_for("#records tbody tr", "400")
    assert (first_offset(page), page.count("#records tbody tr")) == ("400", 50)
    append(shop.connection, "ticks", [(b"k", b"%d" % n) for n in range(3000)])
    page.wait_for("#records tbody tr", "3,400")
    page.wait_for("#tail", "left out")
    assert page.count("#records tbody tr") <= 200


def test_a_record_is_text_and_never_a_script(opened, shop):
    append(shop.connection, "odd", [(SCRIPT.encode(), SCRIPT.encode()), (b"gone", None), (b"large", b"x" * 9000)])
    page = opened("/topics/odd")
    page.wait_for("#records .value", "onerror")
    page.wait_for("#records .value", "tombstone")
    assert page.count("#records img, #records script") == 0
    assert page.run("document.title") == "odd · Mainstem"
    page.click("#records .value button", "9,000")
    page.wait_for("#records .value", "x" * 9000)
    assert page.run("fetch('https://other.example').catch(() => 'refused')") == "refused"
    # Our own try to reach another host is the only thing that the console may tell of.
    page._devtools.events[page._session] = []


def test_what_a_page_lacks_is_told(opened, url, browser):
    page = browser.page()
    page.open(f"{url}/topics/none")
    page.wait_for("#problem", "no such topic")
    page.open(f"{url}/jobs/none")
    page.wait_for("#none:not([hidden])", "No such job")
    page.open("about:blank")


def test_a_job_shows_its_versions(opened):
    page = opened("/")
    page.click('.card[href="/jobs/revenue_hourly"]')
    page.wait_for("section", "Version 2")
    assert page.count("#versions section") == 2
    assert page.text('[data-part="code"]') == "9f2c41d07be8"
    page.click("dd a", "shop.orders")
    page.wait_for("#records tbody tr")


DIFF = {
    "job": "prices", "left": {"version": "1"}, "right": {"version": "2"}, "exact": True, "why": "",
    "equal": 120, "added": 1, "removed": 0, "changed": 2**60,
    "columns": [{"column": "mean", "rows": 2, "only_in": ""}, {"column": "n", "rows": 2, "only_in": "right"}],
    "examples": [
        {"kind": "changed", "key": "EWR", "left": {"o": "EWR", "mean": 1.5}, "right": {"o": "EWR", "mean": 2.25, "n": 7}},
        {"kind": "added", "key": "JFK", "left": None, "right": {"o": SCRIPT}},
    ],
}  # fmt: skip


@pytest.fixture
def prices(shop):
    """A job with a version that is behind; as often as it is asked for, one that no other test has."""
    name = f"prices{next(NUMBERS)}"
    write_versions(shop.connection, name, source="clicks")
    for number, position in (("1", 300), ("2", 120)):
        write_read(shop.connection, name, number, position, source="clicks")
    return name


def test_readers_are_moved_by_a_button_and_back(opened, shop, prices, browser, url):
    page = opened(f"/jobs/{prices}")
    page.wait_for(f"{version(2)} [data-part=ready]", "180 offsets until it is ready")
    page.click(f"{version(2)} button", "Cut over")
    page.wait_for("dialog[open]", "read all that version 1 has read now (180 offsets to go)")
    page.click("#confirm-no")
    page.wait_for("dialog:not([open])")
    page.click(f"{version(2)} button", "Cut over")
    page.click("#confirm-yes", "Cut over")
    page.wait_for(PART.format("told"), f"job {prices}@2 has 180 offsets to go")
    page.wait_for(f"{version(2)} button:disabled", "Cut over")
    # Somebody else sees it, and is told so where they were faster than their page.
    other = opened(f"/jobs/{prices}")
    other.wait_for(PART.format("told"), "180 offsets to go")
    answer = httpx.post(f"{url}/jobs/{prices}/cutover", json={"version": "2"})
    assert (answer.status_code, "goes on already" in answer.json()["error"]["message"]) == (409, True)
    write_read(shop.connection, prices, "2", 300, source="clicks")
    for each in (page, other):
        each.wait_for(PART.format("state"), "done")
        each.wait_for(PART.format("lines"), f"version 2 is current, which writes topic {prices}.v2; version 1 goes on")
        each.wait_for(f"{version(2)} [data-part=current]", "current")
    assert page.run("sessionStorage.getItem('basis')").startswith("ms1.")
    assert other.run("sessionStorage.getItem('basis')") is None
    late = browser.page()  # whose console says of the answer that it is an error
    late.open(f"{url}/jobs/{prices}")
    for each in (other, late):
        each.click(f"{version(1)} button", "Revert")
        each.wait_for("dialog[open]", "Revert to version 1?")
    other.click("#confirm-yes", "Revert")
    for each in (page, late):
        each.wait_for(f"{version(1)} [data-part=current]", "current")
    late.click("#confirm-yes", "Revert")  # it leads to version 2 by now, which this page has not asked about
    late.wait_for("#problem", "expected that a revert leads to version 1, found version 2")
    assert late.text(f"{version(1)} [data-part=current]") == "current"
    late.open("about:blank")


def test_what_is_waited_for_can_be_given_up(opened, shop, prices):
    page = opened(f"/jobs/{prices}")
    page.click(f"{version(2)} button", "Cut over")
    page.click("#confirm-yes")
    page.click(PART.format("give-up"), "Give up")
    page.wait_for(PART.format("lines"), "it was given up; nothing is changed")
    page.wait_for(f"{version(1)} [data-part=current]", "current")


def test_two_versions_are_compared_by_a_button(opened, prices, monkeypatch):
    monkeypatch.setattr(dashboard_commands, "run_command", lambda *_, **__: json.dumps(DIFF))
    page = opened(f"/jobs/{prices}")
    page.click(f"{version(2)} button", "Compare")
    page.wait_for(PART.format("state"), "done")
    page.wait_for("[data-kind=diff] .figures", "1,152,921,504,606,846,976")
    page.wait_for("[data-kind=diff] [data-part=result]", "every difference comes from the code")
    page.wait_for("[data-kind=diff] tr", "nonly in version 2".replace("n", "n2", 1))
    assert page.text("[data-kind=diff] .changes") == "mean 1.5 → 2.25n null → 7"
    assert page.count("[data-kind=diff] img, [data-kind=diff] script") == 0
    assert "onerror" in page.text("[data-kind=diff]")


def view_card(name):
    return f'.card[href="/views/answers/{name}"]'


def test_a_view_is_asked_by_key_and_by_its_beginning(opened, views):
    page = opened("/")
    page.wait_for(view_card("planes"), "running")
    page.click(view_card("planes"))
    page.wait_for("#summary", "key-value of planes · on answers")
    page.wait_for("#nodes tr", "running")
    page.wait_for("#key-tailnum")
    page.click("#go")
    page.wait_for("#told", "100 rows")
    page.click("#more", "More")
    page.wait_for("#told", "200 rows")
    fill(page, "#key-tailnum", "N007")
    page.click("#go")
    page.wait_for("#told", "1 row · partition")
    assert page.text("#rows tbody") == "N007AIRBUS57"
    assert page.run("document.querySelector('#token').value.startsWith('ms1.')")
    fill(page, "#at", "0:0,1:0")
    page.click("#go")
    page.wait_for("#failed", "no row has this key")
    assert page.count("#rows tbody tr") == 0
    page._devtools.events[page._session] = []  # that the answer was 404


def test_pages_without_rows_go_on_to_those_with_some(opened, views, monkeypatch):
    """The node ends a page that it looked for too long; the columns' names came with the first page only."""
    monkeypatch.setattr(app, "PAGE_SECONDS", 0)
    found = views.client.get("/views/planes/row", params={"tailnum": "N000"}).json()
    page = opened("/views/answers/planes")
    page.wait_for("#key-tailnum")
    fill(page, "#at", f"{found['partition']}:0,{1 - found['partition']}:50")
    page.click("#go")
    page.wait_for("#told", "0 rows · so far")
    for _ in range(30):
        page.click("#more", "More")
        page.wait_for("#answered:not(.stale) #told", "so far")
        if page.count("#rows tbody tr"):
            break
    assert page.text("#rows thead").startswith("tailnum")


def test_a_read_sees_what_was_written_before_it(opened, views):
    page = opened("/views/answers/planes")
    page.wait_for("#key-tailnum")
    fill(page, "#key-tailnum", "N901")
    for seats in range(5):
        basis = views.fleet.write(views.fleet.planes, ("N901", "CESSNA", 1000 + seats))
        fill(page, "#token", basis.token)
        page.click("#go")
        page.wait_for("#told", "1 row")
        page.wait_for("#answered:not(.stale) td.number", str(1000 + seats))


def test_a_view_is_searched_and_queried(opened, views):
    page = opened("/views/answers/names")
    page.wait_for("#q")
    fill(page, "#q", "manufacturer:embraer AND flights")
    page.click("#go")
    page.wait_for("#told", "0 fit")
    fill(page, "#q", "embraer")
    page.click("#go")
    page.wait_for("#rows td", "manufacturer EMBRAER")
    page = opened("/views/answers/flights")
    page.wait_for("#sql")
    page.wait_for("#tables", "planes (tailnum, manufacturer, seats)")
    fill(page, "#sql", "SELECT manufacturer, sum(seats) + 9007199254740993 AS much FROM planes GROUP BY 1 ORDER BY 1")
    page.click("#go")
    page.wait_for("#rows td.number", "90071992547")
    assert page.run("[...document.querySelectorAll('#rows td.number')].every(e => BigInt(e.textContent) > 2n ** 53n)")
    fill(page, "#sql", "SELECT * FROM none")
    page.click("#go")
    page.wait_for("#failed", "none")
    assert "\n" not in page.text("#failed")
    page._devtools.events[page._session] = []  # that the answer was 400


def test_more_tabs_than_a_browser_has_connections_are_live(browser, url):
    """A seventh tab got no connection: six are all that a browser opens to a server."""
    first = browser.page()
    tabs = [first]
    first.open(f"{url}/jobs/revenue_hourly")
    first.wait_for("#link", "live")
    for _ in range(7):
        tabs[-1].hide()
        tabs.append(first.beside())
        tabs[-1].open(f"{url}/jobs/revenue_hourly")
        tabs[-1].wait_for("#link", "live")
    tabs[-1].hide()
    before = first.text("#problem")
    first.hide(hidden=False)
    first.wait_for("#link", "live")
    assert before == ""
    for each in tabs:
        each.open("about:blank")


def test_a_page_that_is_gone_back_to_is_live_again(opened, shop):
    page = opened("/")
    page.wait_for(card("clicks"), "offset")
    page.click(card("clicks"))
    page.wait_for("#records tbody tr")
    page.back()
    page.wait_for(card("clicks"), "offset")
    shop.write("site", "clicks", [(None, {"path": "/back"})] * 1000)
    page.wait_for(f"{card('clicks')} .middle", "offset 1,")


def test_it_works_by_keyboard(opened):
    page = opened("/")
    page.wait_for(card("clicks"))
    for _ in range(40):
        page.press("Tab")
        if page.run("document.activeElement.getAttribute('href')") == "/topics/clicks":
            break
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Enter")
    page.wait_for("#name", "clicks")


NAMELESS = "[...document.querySelectorAll('button, input, select, a, [tabindex]')].filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length"

CONTRAST = """(() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c[3] !== 0) return c; } return [255, 255, 255]; };
  return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() &&
      [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .map((e) => { const [a, b] = [light(parse(getComputedStyle(e).color)), light(back(e))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 40)]; })
    .filter(([ratio]) => ratio < 4.5);
})()"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("path", ["/", "/topics/shop.orders", "/jobs/revenue_hourly", "/views/answers/flights"])
def test_all_can_be_read_and_has_a_name(opened, path, dark):
    page = opened(path, dark=dark)
    page.wait_for("#link", "live")
    page.wait_for("h1, h2", "")
    assert page.run(CONTRAST) == []
    assert page.run(NAMELESS) == 0


@pytest.mark.parametrize("path", ["/", "/topics/shop.orders", "/jobs/revenue_hourly", "/views/answers/flights"])
def test_a_phone_shows_it_without_moving_sideways(opened, path):
    page = opened(path, width=390, height=800, mobile=True)
    page.wait_for("#link", "live")
    page.wait_for(".card, #records tbody tr, #versions section, #nodes tr")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
