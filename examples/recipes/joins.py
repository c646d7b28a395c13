"""Orders joined with payments, customers, prices and countries."""

import csv
from functools import cache
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

from mainstem.process import as_of, changelog, stream, topic

orders = topic("shop.orders", event_time="at")
payments = topic("shop.payments", event_time="at")
customers = changelog("shop.customers", key="customer_id")
prices = changelog("shop.prices", key="product", history="since")


@stream(to="shop.orders_paid", key="id", watermark=("at", "10 minutes"))
def orders_paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Two streams: each order with its payment, if that came within an hour; without one when the hour is over."""
    paid = payments.select("order_id", F.col("cents").alias("paid_cents"), F.col("at").alias("paid_at"))
    in_time = F.expr("id = order_id AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR")
    return orders.join(paid, in_time, "left").drop("order_id")


@stream(to="shop.orders_by_region", key="id")
def orders_by_region(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """A stream and a table as of now: the region of the customer as it is when the order is read."""
    return orders.join(customers, "customer_id", "left")


@stream(to="shop.orders_priced", key="id")
def orders_priced(orders: DataFrame, prices: DataFrame) -> DataFrame:
    """A stream and a table as of then: what the product cost when it was ordered."""
    return as_of(orders, prices.withColumnRenamed("cents", "list_cents"), on="product", time="at").drop("since")


@stream(to="shop.orders_taxed", key="id")
def orders_taxed(orders_by_region: DataFrame) -> DataFrame:
    """A lookup: by a function of Python, which may ask a file, as here, a database or a service."""
    return orders_by_region.withColumn("tax", tax_of("region"))


@F.udf(returnType=DoubleType(), useArrow=True)
def tax_of(region: str) -> float | None:
    """The rate of a region; null where it is not known."""
    return rates().get(region)


@cache
def rates() -> dict[str, float]:
    """Read once in each of Spark's workers."""
    with Path(__file__).with_name("taxes.csv").open() as file:
        return {region: float(rate) for region, rate in csv.reader(file)}
