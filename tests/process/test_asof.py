"""Rows meet the version of a table's row that held at their time."""

import pytest

from mainstem.process import as_of


@pytest.mark.spark
def test_rows_are_joined_with_the_version_that_held_at_their_time(spark):
    from pyspark.sql import functions as F

    orders = spark.createDataFrame(
        [(n, "tea", 10 * n) for n in range(5)] + [(9, "milk", 10)], "n int, product string, at int"
    )
    orders = orders.withColumn("at", F.timestamp_seconds("at"))
    prices = spark.createDataFrame(
        [("tea", 5, 10, 30), ("tea", 6, 30, None)], "product string, price int, s int, u int"
    )
    prices = prices.select(
        "product", "price", *(F.timestamp_seconds(a).alias(b) for a, b in (("s", "_since"), ("u", "_until")))
    )
    joined = as_of(orders, prices, on="product", time="at")
    assert joined.columns == ["n", "product", "at", "price"]
    assert {row["n"]: row["price"] for row in joined.collect()} == {0: None, 1: 5, 2: 5, 3: 6, 4: 6, 9: None}
