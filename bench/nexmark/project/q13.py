"""q13: each bid with a row of a table."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from topics import bids, side

from mainstem.process import stream

__all__ = ["bids", "q13", "side"]


@stream(to="nexmark.q13")
def q13(bids: DataFrame, side: DataFrame) -> DataFrame:
    keyed = bids.withColumn("key", F.col("auction") % 10_000)
    return keyed.join(side, "key").select("auction", "bidder", "price", "at", "value")
