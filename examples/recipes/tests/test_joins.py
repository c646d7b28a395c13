"""Joins: with another stream, with tables, with a lookup."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def order(number, minutes=0, customer=7, product="tea"):
    return {
        "id": number,
        "customer_id": customer,
        "product": product,
        "cents": 100,
        "at": NOON + timedelta(minutes=minutes),
    }


def test_an_order_is_told_with_its_payment_or_without_one_when_its_hour_is_over(mainstem_jobs):
    with mainstem_jobs.start("orders_paid") as job:
        payment = {"order_id": 1, "cents": 100, "at": NOON + timedelta(minutes=30)}
        (paid,) = job.feed(orders=[order(1), order(2)], payments=[payment])
        assert (paid["id"], paid["paid_cents"]) == (1, 100)
        (unpaid,) = job.finish()
        assert (unpaid["id"], unpaid["paid_cents"]) == (2, None)


def test_the_region_is_that_of_now(mainstem_jobs):
    job = mainstem_jobs.start("orders_by_region")
    (first,) = job.feed(orders=[order(1)], customers=[{"customer_id": 7, "region": "north"}])
    (second,) = job.feed(orders=[order(2)], customers=[{"customer_id": 7, "region": "south"}])
    assert (first["region"], second["region"]) == ("north", "south")


def test_the_price_is_that_of_then(mainstem_jobs):
    job = mainstem_jobs.start("orders_priced")
    prices = [("tea", 5, -60), ("tea", 6, 10)]
    job.feed(prices=[{"product": p, "cents": cents, "since": NOON + timedelta(minutes=at)} for p, cents, at in prices])
    found = job.feed(orders=[order(1), order(2, minutes=10), order(3, product="milk")])
    assert {row["id"]: row["list_cents"] for row in found} == {1: 5, 2: 6, 3: None}


def test_a_rate_is_looked_up(mainstem_jobs):
    job = mainstem_jobs.start("orders_taxed")
    found = job.feed(orders_by_region=[order(1) | {"region": "north"}, order(2) | {"region": "nowhere"}])
    assert {row["id"]: row["tax"] for row in found} == {1: 0.19, 2: None}
