"""A reader that came later, and found all views from the first on: how many people does a job reach, and where?"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.process import table


@table(to="reach", key=["job_id", "place"], watermark=("at", "1 day"), emit="changes")
def reach(job_views: DataFrame) -> DataFrame:
    """Displays of each job, and its different viewers, on the site and on telephones."""
    viewed = job_views.where("kind = 'display'").groupBy("job_id", "place")
    return viewed.agg(F.count("*").alias("displays"), F.size(F.collect_set("viewer_id")).alias("viewers"))
