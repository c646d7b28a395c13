"""A census that is no project of every tenth year: births and deaths go into a journal, and the population is counted
from it, continuously and by any period.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from mainstem.process import table, topic

journal = topic("census.journal", key="region", event_time="at")


class Population(StatefulProcessor):
    """Of one region, at the end of each period in which somebody was born or died. Who is entered late changes the
    population of that period and of all that follow.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._periods = handle.getMapState("periods", "period date", "births long, deaths long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        periods = {period: counts for (period,), counts in self._periods.iterator()}
        changed = set()
        for row in rows:
            births, deaths = periods.get(row["period"], (0, 0))
            periods[row["period"]] = (births + (row["kind"] == "birth"), deaths + (row["kind"] == "death"))
            changed.add(row["period"])
        for period in changed:
            self._periods.updateValue((period,), periods[period])
        population = 0
        for period, (births, deaths) in sorted(periods.items()):
            population += births - deaths
            if period >= min(changed):
                yield Row(region=key[0], period=period, births=births, deaths=deaths, population=population)

    def close(self) -> None:
        pass


def population_by(unit: str, journal: DataFrame) -> DataFrame:
    """What all periods have in common; `unit` is one that Spark's `date_trunc` knows."""
    entered = journal.select("region", "kind", F.date_trunc(unit, "at").cast("date").alias("period"))
    counted = entered.groupBy("region").transformWithState(
        statefulProcessor=Population(),
        outputStructType="region string, period date, births long, deaths long, population long",
        outputMode="Update",
        timeMode="None",
    )
    return counted.withColumnRenamed("period", unit)


@table(to="census.population_by_day", key=["region", "day"], watermark=("at", "30 days"), emit="changes")
def population_by_day(journal: DataFrame) -> DataFrame:
    """State of one's own that is a table: of each region, day by day."""
    return population_by("day", journal)


@table(to="census.population_by_month", key=["region", "month"], watermark=("at", "30 days"), emit="changes")
def population_by_month(journal: DataFrame) -> DataFrame:
    """The same journal, by month: no window of Spark's is a month long, but a key may be."""
    return population_by("month", journal)


@table(to="census.population_by_year", key=["region", "year"], watermark=("at", "30 days"), emit="changes")
def population_by_year(journal: DataFrame) -> DataFrame:
    """The same journal, by year."""
    return population_by("year", journal)


@table(to="census.population", key="region", watermark=("at", "30 days"), emit="changes")
def population(journal: DataFrame) -> str:
    """The population as of now: no state of one's own is needed where the order does not matter."""
    return """
        SELECT region, sum(CASE kind WHEN 'birth' THEN 1 ELSE -1 END) AS population
        FROM journal
        GROUP BY region
    """
