"""Monitoring: are jobs displayed as usual?"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.process import table


@table(to="monitoring.display_rate", key=["place", "minute"], watermark=("at", "1 hour"), emit="changes")
def display_rate(job_views: DataFrame) -> DataFrame:
    """Displays in each minute, and how many there were for each impression; null where there was none. They are told at
    once, and again when a telephone that was out of reach has sent what it kept.
    """
    minutes = job_views.groupBy("place", F.window("at", "1 minute"))
    counts = minutes.agg(
        F.count_if(F.col("kind") == "impression").alias("impressions"),
        F.count_if(F.col("kind") == "display").alias("displays"),
    )
    rate = F.try_divide("displays", "impressions")
    return counts.select("place", F.col("window.start").alias("minute"), "displays", rate.alias("rate"))
