"""Requests to a web site, in windows of time."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.process import stream, table, topic

requests = topic("web.requests", event_time="at")


@table(to="web.traffic_per_minute", key=["host", "minute"], watermark=("at", "1 minute"))
def traffic_per_minute(requests: DataFrame) -> DataFrame:
    """A tumbling window: each request counts in one minute."""
    minutes = requests.groupBy("host", F.window("at", "1 minute"))
    traffic = minutes.agg(
        F.count("*").alias("requests"),
        F.sum("bytes").alias("bytes"),
        F.avg("bytes").alias("mean_bytes"),
        F.min("bytes").alias("least_bytes"),
        F.max("bytes").alias("most_bytes"),
        F.percentile("bytes", 0.5).alias("median_bytes"),
        F.percentile("bytes", 0.99).alias("p99_bytes"),
        F.count_if(F.col("status") >= 500).alias("errors"),
    )
    return traffic.withColumn("minute", F.col("window.start")).drop("window")


@table(to="web.errors_lately", key=["host", "until"], watermark=("at", "1 minute"))
def errors_lately(requests: DataFrame) -> DataFrame:
    """A sliding window: the share of errors in the last five minutes, told every minute."""
    lately = requests.groupBy("host", F.window("at", "5 minutes", "1 minute"))
    share = lately.agg(F.avg((F.col("status") >= 500).cast("int")).alias("share"), F.count("*").alias("requests"))
    return share.select("host", F.col("window.end").alias("until"), "share", "requests")


@table(to="web.visits", key=["host", "began"], watermark=("at", "1 minute"))
def visits(requests: DataFrame) -> DataFrame:
    """A session window: a visit ends when nothing came for half an hour."""
    sessions = requests.groupBy("host", F.session_window("at", "30 minutes"))
    told = sessions.agg(
        F.min("at").alias("began"),
        F.max("at").alias("ended"),
        F.count("*").alias("requests"),
        F.min_by("path", "at").alias("entered_by"),
        F.max_by("path", "at").alias("left_by"),
    )
    return told.drop("session_window")


@stream(to="web.paths_per_minute", watermark=("at", "1 minute"), event_time="minute")
def paths_per_minute(requests: DataFrame) -> str:
    """How often each path was asked for in a minute. It is SQL, as any job may be."""
    return """
        SELECT window.start AS minute, path, count(*) AS requests
        FROM requests
        GROUP BY path, window(at, '1 minute')
    """


@table(to="web.top_paths", key="minute", watermark=("minute", "1 minute"))
def top_paths(paths_per_minute: DataFrame) -> DataFrame:
    """The three paths of a minute that were asked for most: top-N is a second step, over the counts of the first."""
    counted = paths_per_minute.groupBy(F.window("minute", "1 minute"))
    ranked = counted.agg(F.sort_array(F.collect_list(F.struct("requests", "path")), asc=False).alias("ranked"))
    return ranked.select(F.col("window.start").alias("minute"), F.slice("ranked", 1, 3).alias("paths"))
