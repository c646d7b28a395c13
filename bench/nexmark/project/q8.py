"""q8: who has put up an auction within the ten seconds in which he came."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from topics import auctions, persons

from mainstem.process import stream

__all__ = ["auctions", "persons", "q8"]


@stream(to="nexmark.q8", watermark=("at", "5 seconds"))
def q8(persons: DataFrame, auctions: DataFrame) -> DataFrame:
    came = persons.select("person", "name", F.window("at", "10 seconds").alias("came"))
    sold = auctions.select("auction", "seller", F.window("at", "10 seconds").alias("sold"))
    joined = came.join(sold, F.expr("person = seller AND came = sold"))
    return joined.select("person", "name", "auction", F.col("came.start").alias("start"))
