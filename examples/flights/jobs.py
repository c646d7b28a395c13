"""New York's flights of 2013 with their aircraft, airlines and airports; and the visits to a web site.

flights ──┬──> flights_enriched ──> delays_hourly         access_log ──> access_requests ──> access_sessions
          └──> aircraft_days
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mainstem.process import changelog, stream, table, topic

flights = topic("flights")
planes = changelog("fleet.planes", key="tailnum")
airlines = changelog("fleet.airlines", key="carrier")
airports = changelog("fleet.airports", key="faa")
access_log = topic("access_log")

# Two partitions of a topic that is read from its beginning drift apart by up to three days of event time, since the
# flights of a season are not spread evenly. Less than this, and a rebuild would find rows too late.
SKEW = "5 days"


@stream(to="flights_enriched", key=["carrier", "flight"])
def flights_enriched(flights: DataFrame, planes: DataFrame, airlines: DataFrame, airports: DataFrame) -> DataFrame:
    """Flights with what is known of their aircraft, airline and airports as of now; what is unknown stays null."""
    plane = planes.select("tailnum", F.col("year").alias("plane_year"), "manufacturer", "model", "seats")
    airline = airlines.select("carrier", F.col("name").alias("airline"))
    origin = airports.select(F.col("faa").alias("origin"), F.col("name").alias("origin_name"))
    dest = airports.select(F.col("faa").alias("dest"), F.col("name").alias("dest_name"))
    joined = (
        flights.join(plane, "tailnum", "left")
        .join(airline, "carrier", "left")
        .join(origin, "origin", "left")
        .join(dest, "dest", "left")
    )
    return joined.select(
        "scheduled_at", "origin", "dest", "carrier", "flight", "tailnum", "dep_delay", "arr_delay", "distance",
        "airline", "plane_year", "manufacturer", "model", "seats", "origin_name", "dest_name",
        F.col("dep_time").isNull().alias("cancelled"), "_position",
    )  # fmt: skip


@table(to="delays_hourly", key=["origin", "hour"], watermark=("scheduled_at", SKEW))
def delays_hourly(flights_enriched: DataFrame) -> DataFrame:
    """Departure delays in minutes per origin and hour of the schedule, UTC. In the mean a cancelled flight counts as
    one that left on time, in the others not at all.

    `p95_dep_delay` is exact: the 0.95 quantile of all delays, interpolated between the two nearest.
    """
    per_hour = flights_enriched.groupBy("origin", F.window("scheduled_at", "1 hour"))
    delays = per_hour.agg(
        F.count("*").alias("flights"),
        F.count_if("cancelled").alias("cancelled"),
        F.avg(F.coalesce("dep_delay", F.lit(0))).alias("mean_dep_delay"),
        F.max("dep_delay").alias("max_dep_delay"),
        F.percentile("dep_delay", 0.95).alias("p95_dep_delay"),
    )
    return delays.select(
        "origin", F.col("window.start").alias("hour"), "flights", "cancelled", "mean_dep_delay", "max_dep_delay",
        "p95_dep_delay",
    )  # fmt: skip


@table(to="aircraft_days", key=["tailnum", "first_departure"], watermark=("scheduled_at", SKEW))
def aircraft_days(flights: DataFrame) -> DataFrame:
    """An aircraft's days of work: flights with at most 6 hours from one scheduled departure to the next."""
    days = flights.filter("tailnum is not null").groupBy("tailnum", F.session_window("scheduled_at", "6 hours"))
    work = days.agg(
        F.min("scheduled_at").alias("first_departure"),
        F.max("scheduled_at").alias("last_departure"),
        F.count("*").alias("flights"),
        F.sum("distance").alias("miles"),
        F.coalesce(F.sum("air_time"), F.lit(0)).alias("minutes_in_air"),
    )
    return work.drop("session_window")


# The combined log format, up to the size: what follows may be cut short.
# A run of plain characters is taken as a whole: Java's matcher goes one call deeper for every turn of a group.
LINE = r'^(\S+) \S+ \S+ \[([^\]]+)\] "([^"\\]*+(?:\\.[^"\\]*+)*+)" (\d{3}) (\d+|-)'


@stream(to="access_requests", key="client", event_time="at")
def access_requests(access_log: DataFrame) -> DataFrame:
    """Requests from the lines of the log; a line that is none keeps its text in `unparsed` and has nulls elsewhere."""

    def part(number: int) -> Column:
        return F.when(F.col("line").rlike(LINE), F.regexp_extract("line", LINE, number))

    return access_log.select(
        part(1).alias("client"),
        F.try_to_timestamp(part(2), F.lit("dd/MMM/yyyy:HH:mm:ss Z")).alias("at"),
        part(3).alias("request"),
        part(4).cast("int").alias("status"),
        F.when(part(5) == "-", "0").otherwise(part(5)).cast("long").alias("bytes"),
        F.when(~F.col("line").rlike(LINE), F.col("line")).alias("unparsed"),
        "_position",
    )


@table(to="access_sessions", key=["client", "started_at"], watermark=("at", "5 minutes"))
def access_sessions(access_requests: DataFrame) -> DataFrame:
    """Visits: requests of one client with at most 30 minutes from one to the next."""
    visits = access_requests.groupBy("client", F.session_window("at", "30 minutes"))
    sessions = visits.agg(
        F.min("at").alias("started_at"),
        F.max("at").alias("ended_at"),
        F.count("*").alias("requests"),
        F.sum("bytes").alias("bytes"),
        F.count_if(F.col("status") >= 400).alias("errors"),
    )
    return sessions.drop("session_window")
