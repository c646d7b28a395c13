"""What docs/projects.md shows runs, and is what the page says of it."""

import inspect
import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mainstem.connect.local_postgres import LocalPostgres
from mainstem.connect.sinks.delta_rows import place_fields
from mainstem.process import changelog, stream, table, topic
from mainstem.process.declare import SINCE, UNTIL
from mainstem.process.reading import POSITION_TYPE, RECORD_TYPE
from mainstem.process.session import SparkConfig
from mainstem.standalone.config import load_config
from mainstem.standalone.planned import planned_now
from mainstem.testing import jobs_of
from tests.support.node import Node, wait_for
from tests.support.postgres import Database
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (ROOT / "docs" / "projects.md").read_text()


@pytest.fixture
def blocks(tmp_path: Path) -> dict[str, list[str]]:
    """The page's blocks by language; those that are files are in `tmp_path`."""
    found: dict[str, list[str]] = {}
    for language, text in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL):
        found.setdefault(language, []).append(text)
    (tmp_path / "mainstem.toml").write_text(found["toml"][0])
    (tmp_path / "orders.avsc").write_text(found["json"][0])
    (tmp_path / "customers.avsc").write_text(found["json"][1])
    (tmp_path / "jobs.py").write_text(found["python"][0])
    return found


@pytest.mark.spark
@pytest.mark.usefixtures("blocks", "spark_runs_already")
def test_the_project_means_what_the_page_says(tmp_path: Path) -> None:
    jobs = planned_now(tmp_path, tmp_path / ".mainstem", None).jobs
    assert {job.name: (job.determinism, job.keeps_order) for job in jobs} == {
        "large_orders": ("prefix-deterministic", True),
        "orders_enriched": ("batch-dependent", True),
        "revenue_hourly": ("batch-dependent", True),
    }


@pytest.mark.spark
def test_a_job_is_fed_as_the_page_does_it(spark: "SparkSession", blocks: dict[str, list[str]], tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    exec(blocks["python"][2], found)
    found["test_an_hour_is_written_when_it_is_over"](jobs_of(tmp_path, spark))


PAYMENT = {"type": "record", "name": "Payment", "fields": [
    {"name": "order_id", "type": ["null", "long"]}, {"name": "amount_cents", "type": "long"},
    {"name": "paid_at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}  # fmt: skip


@pytest.mark.spark
@pytest.mark.usefixtures("spark_runs_already")
def test_a_state_is_a_table_that_another_job_joins(blocks: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "payments.py").write_text(blocks["python"][5])
    (tmp_path / "payments.avsc").write_text(json.dumps(PAYMENT))
    settings = '[project]\njobs = "payments.py"\n[topics."shop.payments"]\nschema = "payments.avsc"\n'
    (tmp_path / "mainstem.toml").write_text(settings)
    plan = planned_now(tmp_path, tmp_path / ".mainstem", None)
    daily, so_far = plan.jobs
    (state,) = [each for each in plan.topics if each.name == "shop.paid_daily.state"]
    assert (daily.also, so_far.tables) == (["shop.paid_daily.state"], ["shop.paid_daily.state"])
    assert (state.kind, state.producer, state.readers) == ("changelog", "paid_daily", ["paid_so_far"])
    assert [each.name for each in state.columns or ()] == ["window_start", "window_end", "amount_cents"]
    assert [each.name for each in so_far.columns or ()] == ["order_id", "amount_cents", "paid_at", "so_far"]


CLICK = {"type": "record", "name": "Click", "fields": [
    {"name": "customer_id", "type": "long"}, {"name": "page", "type": "string"},
    {"name": "clicked_at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}  # fmt: skip


@pytest.mark.spark
@pytest.mark.usefixtures("spark_runs_already")
def test_the_job_whose_rows_do_not_wait_promises_what_the_page_says(
    blocks: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "clicks.py").write_text(blocks["python"][7])
    (tmp_path / "clicks.avsc").write_text(json.dumps(CLICK))
    settings = '[project]\njobs = "clicks.py"\n[topics."shop.clicks"]\nschema = "clicks.avsc"\n'
    (tmp_path / "mainstem.toml").write_text(settings)
    (job,) = planned_now(tmp_path, tmp_path / ".mainstem", None).jobs
    assert job.guarantee == "at least once: after a crash or a stop the rows of up to 30 seconds come again"
    assert (job.keeps_order, job.slices) == (True, False)


@pytest.mark.spark
@pytest.mark.usefixtures("spark_runs_already")
def test_a_local_index_ranks_payments_as_the_page_says(
    spark: "SparkSession", blocks: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "payments.py").write_text(blocks["python"][6])
    (tmp_path / "payments.avsc").write_text(json.dumps(PAYMENT))
    settings = '[project]\njobs = "payments.py"\n[topics."shop.payments"]\nschema = "payments.avsc"\n'
    (tmp_path / "mainstem.toml").write_text(settings)
    (job,) = planned_now(tmp_path, tmp_path / ".mainstem", None).jobs
    assert (job.state, job.slices, job.keeps_order) == ("the local index of shop.largest_payments", False, True)
    with jobs_of(tmp_path, spark).start("payments_ranked") as ranked:
        rows = [{"order_id": number, "amount_cents": number, "paid_at": "2026-05-01T12:00:00Z"} for number in range(4)]
        assert [row["larger_than"] for row in ranked.feed(payments=rows)] == [0.0] * 4
        assert [row["larger_than"] for row in ranked.feed(payments=[rows[3] | {"order_id": 9}])] == [0.75]


@pytest.mark.spark
@pytest.mark.usefixtures("spark_runs_already")
def test_the_job_with_several_results_and_that_of_sql_mean_what_the_page_says(
    blocks: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "payments.py").write_text(blocks["python"][3])
    (tmp_path / "payments.avsc").write_text(json.dumps(PAYMENT))
    settings = '[project]\njobs = "payments.py"\n[topics."shop.payments"]\nschema = "payments.avsc"\n'
    (tmp_path / "mainstem.toml").write_text(settings)
    paid, daily = planned_now(tmp_path, tmp_path / ".mainstem", None).jobs
    assert (paid.output, paid.also, paid.keeps_order) == ("shop.paid", ["shop.refunds"], True)
    assert [each.name for each in daily.columns or ()] == ["day", "amount_cents"]
    assert daily.state == "an aggregation"


@pytest.mark.spark
@pytest.mark.usefixtures("spark_runs_already")
def test_the_join_as_of_then_means_what_the_page_says(blocks: dict[str, list[str]], tmp_path: Path) -> None:
    def schema(*fields: tuple[str, Any]) -> str:
        return json.dumps(
            {"type": "record", "name": "Row", "fields": [{"name": n, "type": kind} for n, kind in fields]}
        )

    time = {"type": "long", "logicalType": "timestamp-micros"}
    (tmp_path / "orders.avsc").write_text(schema(("product", "string"), ("ordered_at", time)))
    (tmp_path / "prices.avsc").write_text(schema(("product", "string"), ("cents", "long"), ("since", time)))
    (tmp_path / "jobs.py").write_text(blocks["python"][4])
    settings = '[topics."shop.orders"]\nschema = "orders.avsc"\n[topics."shop.prices"]\nschema = "prices.avsc"\n'
    (tmp_path / "mainstem.toml").write_text(settings)
    (job,) = planned_now(tmp_path, tmp_path / ".mainstem", None).jobs
    assert [each.name for each in job.columns or ()] == ["product", "ordered_at", "cents", "since"]


@pytest.mark.spark
def test_a_job_is_called_with_rows_as_the_page_does_it(
    spark: "SparkSession", blocks: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's own session is one of the Spark that runs: what it sets is set for no other test."""
    monkeypatch.setattr(type(spark), "_instantiatedSession", spark.newSession())
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("jobs", None)  # of another project
    try:
        exec(blocks["python"][1], {})
    finally:
        assert Path(str(sys.modules.pop("jobs").__file__)) == tmp_path / "jobs.py"
    assert spark.conf.get("spark.master") == SparkConfig().master


def test_the_sources_and_destinations_run(
    blocks: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the lakehouse is left out, which the README's project has: it needs Spark."""
    project = tmp_path / "connectors"
    project.mkdir()
    (project / "mainstem.toml").write_text(f"project.jobs = []\n{blocks['toml'][1]}")
    config = load_config(project, {})
    assert config.lakehouses["lake"].path == str(project / "lake")
    without_lake = re.sub(r"\[sinks\.lake\].*?\n\n", "", blocks["toml"][1], flags=re.DOTALL)
    (project / "mainstem.toml").write_text(f"project.jobs = []\n{without_lake}")
    (project / "access.log").write_text("GET /\nGET /about\n")
    with LocalPostgres(tmp_path / "postgres", settings={"fsync": "off"}) as server:
        source, copy = Database(server.create_database("crm")), Database(server.create_database("crm_copy"))
        source.run("CREATE TABLE customers (id int PRIMARY KEY, name text)", "INSERT INTO customers VALUES (1, 'Ann')")
        monkeypatch.setenv("MAINSTEM_SOURCES__CRM__URL", source.url)
        monkeypatch.setenv("MAINSTEM_SINKS__COPY__URL", copy.url)
        with Node(project, tmp_path / "data") as node:
            wait_for(lambda: node.lines_of("access_log") == ["GET /", "GET /about"], 120)
            wait_for(lambda: copy.run("SELECT to_regclass('customers')") != [(None,)], 120)
            wait_for(lambda: copy.run("SELECT * FROM customers") == [(1, "Ann")], 120)
            node.stop()


def test_the_collector_takes_what_is_posted(blocks: dict[str, list[str]], tmp_path: Path) -> None:
    """The parts of each command are sent by another client: not every machine has curl."""
    (tmp_path / "mainstem.toml").write_text(f"project.jobs = []\n{blocks['toml'][0]}")
    commands = [shlex.split(line)[1:] for line in blocks["sh"][0].replace("\\\n", "").splitlines()]
    assert len(commands) == 4
    with Node(tmp_path, tmp_path / "data") as node:
        for url, *options in commands:
            path = url.removeprefix("http://127.0.0.1:9600/v1/topics/")
            events = json.loads(options[options.index("-d") + 1]) if "-d" in options else None
            answer = node.post(path, events)
            assert not isinstance(events, list) or answer["accepted"] == len(events)
        (order,) = node.values_of("shop.orders")
        assert (order["customer_id"], order["amount_cents"]) == (7, 12000)
        assert sorted(row["region"] for row in node.values_of("shop.customers")) == ["north", "south"]
        node.stop()


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the table whose first row of columns begins so, without their backticks."""
    _, _, rest = PAGE.partition(f"\n| {heading} |")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_the_arguments_are_those_of_the_declarations() -> None:
    """`event_time`, `schema` and others stood in no page."""
    told: dict[str, dict[str, str]] = {name: {} for name in ("topic", "changelog", "stream", "table")}
    for argument, *cells, _ in rows_below("argument"):
        for name, cell in zip(told, cells, strict=True):
            told[name] |= {argument: cell} if cell else {}
    for function in (topic, changelog, stream, table):
        parameters = inspect.signature(function).parameters.values()
        defaults = {inspect.Parameter.empty: "required", None: "optional", (): "optional"}
        defaults |= {text: f'"{text}"' for text in ("final", "batch")}
        assert told[function.__name__] == {each.name: defaults[each.default] for each in parameters}
        keywords = {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
        assert told[function.__name__].keys() - keywords <= {"name"}


def test_the_columns_that_are_added_have_the_types_that_the_page_says() -> None:
    names = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.timestamp("us", "UTC"): "timestamp"}
    rows = [*([field.name, names[field.type]] for field in place_fields())]
    history = [[SINCE, "timestamp"], [UNTIL, "timestamp"]]
    added = [POSITION_TYPE.split(" "), RECORD_TYPE.split(" "), *history, *rows]
    assert [cells[:2] for cells in rows_below("column")] == added
