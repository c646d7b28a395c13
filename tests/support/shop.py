"""A shop, as tests of running jobs write one: orders, customers, and a project over them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support.jobs import change_schema

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NUMBERS = iter(range(1000))

ORDERS = json.dumps({"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"], "default": None},
    {"name": "cents", "type": "long"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]})  # fmt: skip
CUSTOMERS = change_schema(
    "shop.customers", [{"name": "name", "type": "string"}, {"name": "region", "type": ["null", "string"]}]
)


@pytest.fixture
def shop() -> str:
    """A prefix for topics of this test alone: the log is shared."""
    return f"shop{next(NUMBERS)}"


def write_project(directory: Path, shop: str, jobs: str, settings: str = "") -> Path:
    """A project that reads `<shop>.orders` and `<shop>.customers`; `SHOP` in its jobs is the prefix."""
    directory.mkdir(exist_ok=True)
    (directory / "orders.avsc").write_text(ORDERS)
    (directory / "mainstem.toml").write_text(
        f'[topics."{shop}.orders"]\npartitions = 2\nschema = "orders.avsc"\nkey = "customer"\nevent_time = "at"\n'
        + settings
    )
    head = f"""\
        from mainstem.process import changelog, stream, table, topic
        from pyspark.sql import functions as F
        orders = topic("{shop}.orders")
        customers = changelog("{shop}.customers", key="name")
    """
    (directory / "jobs.py").write_text(dedent(head) + dedent(jobs).replace("SHOP", shop))
    return directory


def order(number: int, customer: str | None, minutes: float, cents: int = 100) -> dict[str, Any]:
    return {"id": number, "customer": customer, "cents": cents, "at": NOON + timedelta(minutes=minutes)}


@pytest.fixture
def drivers() -> Iterator[list[Any]]:
    """Drivers that are put into it are stopped afterwards."""
    started: list[Any] = []
    yield started
    for driver in started:
        driver.stop()
