"""q11: how many bids each bidder has made without a pause of ten seconds."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from topics import bids

from mainstem.process import stream

__all__ = ["bids", "q11"]


@stream(to="nexmark.q11", watermark=("at", "5 seconds"))
def q11(bids: DataFrame) -> DataFrame:
    sessions = bids.groupBy("bidder", F.session_window("at", "10 seconds"))
    counted = sessions.agg(F.min("at").alias("start"), F.max("at").alias("last"), F.count("*").alias("bids"))
    return counted.select("bidder", "start", "last", "bids")
