"""q5: how many bids each auction has got in ten seconds."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from topics import bids

from mainstem.process import stream

__all__ = ["bids", "q5"]


@stream(to="nexmark.q5", watermark=("at", "5 seconds"))
def q5(bids: DataFrame) -> DataFrame:
    counted = bids.groupBy("auction", F.window("at", "10 seconds")).agg(F.count("*").alias("bids"))
    return counted.select("auction", F.col("window.start").alias("start"), "bids")
