"""Requests to a web site, row by row: those that cannot be are kept out, and two topics are written."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.process import stream, topic

failures = topic("web.failures", key="host")


@stream(to="web.checked_requests", key="host", also=[failures])
def checked_requests(requests: DataFrame) -> tuple[DataFrame, DataFrame]:
    """All requests, and those that the site has failed at. Rejected rows are in `web.checked_requests.quarantine`, each
    with its record and the reason.
    """
    known = F.col("status").between(100, 599)
    reason = F.when(~known, F.concat(F.lit("expected a status of 100 to 599, found "), F.col("status")))
    failed = requests.where(F.col("status").between(500, 599))
    return requests.withColumn("_rejected", reason), failed.select("host", "path", "status", "at")
