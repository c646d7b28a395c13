"""q2: the bids on some auctions."""

from pyspark.sql import DataFrame
from topics import bids

from mainstem.process import stream

__all__ = ["bids", "q2"]


@stream(to="nexmark.q2")
def q2(bids: DataFrame) -> DataFrame:
    return bids.filter("auction % 123 = 0").select("auction", "price")
