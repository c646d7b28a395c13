"""Security: who copies the site instead of looking for a job?"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.process import table

MOST_JOBS = 100


@table(to="security.scrapers", key=["viewer_id", "since"], watermark=("at", "10 minutes"), emit="changes")
def scrapers(job_views: DataFrame) -> DataFrame:
    """Viewers of more than a hundred different jobs in ten minutes, told as soon as it is so."""
    displays = job_views.where("kind = 'display'")
    viewed = displays.groupBy("viewer_id", F.window("at", "10 minutes")).agg(F.collect_set("job_id").alias("jobs"))
    return viewed.select("viewer_id", F.col("window.start").alias("since"), F.size("jobs").alias("jobs")).where(
        F.col("jobs") > MOST_JOBS
    )
