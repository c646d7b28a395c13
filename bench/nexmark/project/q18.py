"""q18: the last bid of each bidder on each auction."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from topics import bids

from mainstem.process import table

__all__ = ["bids", "q18"]


@table(to="nexmark.q18", key=["auction", "bidder"], watermark=("at", "5 seconds"), emit="changes")
def q18(bids: DataFrame) -> DataFrame:
    last = bids.groupBy("auction", "bidder").agg(F.max(F.struct("at", "price")).alias("last"))
    return last.select("auction", "bidder", "last.price", "last.at")
