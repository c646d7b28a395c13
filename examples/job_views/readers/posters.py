"""Analytics for who has posted a job: how often it was seen, and what came of it."""

from pyspark.sql import DataFrame

from mainstem.process import table

COUNTS = """
    count_if(kind = 'impression') AS impressions,
    count_if(kind = 'display') AS displays,
    count_if(kind = 'application') AS applications
"""


@table(to="posters.jobs", key="job_id", watermark=("at", "1 day"), emit="changes")
def job_statistics(job_views: DataFrame) -> str:
    """Of each job."""
    return f"SELECT job_id, poster_id, {COUNTS} FROM job_views GROUP BY job_id, poster_id"


@table(to="posters.totals", key="poster_id", watermark=("at", "1 day"), emit="changes")
def poster_statistics(job_views: DataFrame) -> str:
    """Of each poster, over all of his jobs."""
    return f"SELECT poster_id, {COUNTS} FROM job_views GROUP BY poster_id"
