"""Monitoring: do people apply as usual?"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.process import table


@table(to="monitoring.application_rate", key=["place", "since"], watermark=("at", "1 hour"), emit="changes")
def application_rate(job_views: DataFrame) -> DataFrame:
    """Applications in each ten minutes, and how many there were for each display; null where there was none."""
    minutes = job_views.groupBy("place", F.window("at", "10 minutes"))
    counts = minutes.agg(
        F.count_if(F.col("kind") == "display").alias("displays"),
        F.count_if(F.col("kind") == "application").alias("applications"),
    )
    rate = F.try_divide("applications", "displays")
    return counts.select("place", F.col("window.start").alias("since"), "applications", rate.alias("rate"))
