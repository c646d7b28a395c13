"""q1: the price of each bid in another currency."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from topics import bids

from mainstem.process import stream

__all__ = ["bids", "q1"]


@stream(to="nexmark.q1")
def q1(bids: DataFrame) -> DataFrame:
    return bids.select("auction", "bidder", (F.col("price") * F.lit(0.908)).alias("price"), "at")
