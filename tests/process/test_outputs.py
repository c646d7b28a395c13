"""What a job's results become: records of several topics, of its quarantine, with headers; in one transaction."""

import json

import pytest

from mainstem.client.append import append
from mainstem.client.catalog import read_catalog
from mainstem.client.topics import delete
from mainstem.registry import avro
from tests.support.jobs import driver_of, put_rows, read_rows, run_until
from tests.support.records import committed
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures

JOBS = """
    refunds = changelog("SHOP.refunds", key="id")

    @stream(to="SHOP.paid", key="customer", also=[refunds])
    def paid(orders):
        checked = orders.withColumn("_rejected", F.when(F.col("customer").isNull(), "no customer"))
        return checked.where("cents >= 0"), checked.where("cents < 0").select("id", "cents", "_position", "_rejected")

    @stream(to="SHOP.seen", key="id")
    def seen(refunds, paid):
        return paid.join(refunds.select(F.col("id").alias("refunded")), F.col("refunded") == F.col("id"), "left")
"""


def values(connection, topic):
    return sorted(read_rows(connection, topic), key=lambda row: row.get("id") or row["offset"])


def test_several_results_and_what_is_rejected_go_to_their_topics_at_once(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, JOBS)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    orders = [order(1, "ann", 0), order(2, "bob", 1, -5), order(3, None, 2), order(4, None, 3, -1)]
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, orders, ("id",))
    append(log_connection, f"{shop}.orders", [(b"k", b"no avro")], timeout_seconds=60)
    kept = f"{shop}.paid.quarantine"
    run_until(driver, lambda: kept in topics(log_connection) and len(read_rows(log_connection, kept)) == 3)
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.seen")) == 1)

    assert [row["id"] for row in values(log_connection, f"{shop}.paid")] == [1]
    assert values(log_connection, f"{shop}.refunds") == [{"id": 2, "cents": -5}]
    by_error = {}
    for row in values(log_connection, kept):
        by_error.setdefault(row["error"], []).append(row)
    (bad,), rejected = by_error["undecodable"], by_error["rejected"]
    assert (bad["topic"], bad["key"], bad["value"], bad["stage"]) == (f"{shop}.orders", b"k", b"no avro", "job paid@1")
    assert {row["reason"] for row in rejected} == {"no customer"}
    # The first result keeps `_record`, so the bytes are there as they came; the second does not, so its row is.
    whole = next(row for row in rejected if row["topic"] == f"{shop}.orders")
    assert avro.decode(whole["value"], {whole["schema_id"]: ORDERS}.__getitem__)["id"] == 3
    assert (whole["key"], whole["partition"] >= 0, whole["offset"] >= 0) == (b"3", True, True)
    made = next(row for row in rejected if row["topic"] == f"{shop}.paid")
    assert (json.loads(made["value"]), made["partition"], made["key"]) == ({"id": 4, "cents": -1}, -1, None)

    catalog = read_catalog(log_connection)
    about = catalog["job:paid"]["versions"]["1"]
    assert (about["output"], about["also"]) == (f"{shop}.paid", {f"{shop}.refunds": f"{shop}.refunds"})
    assert catalog[f"topic:{shop}.refunds"]["kind"] == "changelog"
    assert catalog[f"topic:{shop}.refunds"]["producer"] == "job:paid"


def test_a_quarantine_that_was_deleted_is_made_anew(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """Who has mended what was in it deletes it; the job had another one open."""
    jobs, _, _ = JOBS.replace("def paid", "def remade").partition('    @stream(to="SHOP.seen')
    project = write_project(tmp_path / "project", shop, jobs)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    kept = f"{shop}.paid.quarantine"
    for number in (1, 2):
        put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(number, None, 0)], ())
        run_until(driver, lambda: kept in topics(log_connection) and len(read_rows(log_connection, kept)) == 1)
        delete(log_connection, [kept])


def test_headers_key_and_bytes_are_reachable_and_a_result_may_have_headers(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, """
        @stream(to="SHOP.traced")
        def traced(orders):
            return orders.select(
                "id", F.decode("_record.key", "UTF-8").alias("was"), F.size("_record.headers").alias("headers"),
                F.hex("_record.value").alias("bytes"), F.col("_position.offset").alias("at_offset"),
                F.array(F.struct(F.lit("trace").alias("key"), F.col("_record.key").alias("value"))).alias("_headers"),
            )
    """)  # fmt: skip
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(7, "ann", 0)], ("customer",))
    run_until(
        driver, lambda: f"{shop}.traced" in topics(log_connection) and read_rows(log_connection, f"{shop}.traced")
    )
    (row,) = read_rows(log_connection, f"{shop}.traced")
    assert (row["id"], row["was"], row["at_offset"]) == (7, "ann", 0)
    assert avro.decode(bytes.fromhex(row["bytes"]), lambda _: ORDERS)["id"] == 7
    (message,) = committed(log_connection, f"{shop}.traced")
    assert message.headers() == [("trace", b"ann")]


def topics(connection):
    from mainstem.client.topics import list_topics

    return list_topics(connection)
