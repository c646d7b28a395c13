"""The main job on real input: a database, events and a log file, through the log and Spark, into tables and views;
then the proof.

    python examples/flights_demo/demo.py [--flights 336776] [--work DIR] [--bootstrap HOST:PORT] [--kill] [--keep]

It starts a real PostgreSQL and `mainstem up` on a copy of examples/flights, plays the year's flights to it, changes the
database in the middle, waits until everything has arrived, and compares every stage with the truth that `truth.py`
computes from the input files alone. Then what follows the log answers: views that show what was just written while
their nodes are killed (`answers.py`), readers that move to a second version of a job and back (`versions.py`), a
service whose replicas agree (`replicas.py`). Exit code 0 only if all is as it should be.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg2
import stock
from answers import Answers
from check import (
    Line,
    compare,
    compare_topic_and_table,
    database_table,
    delta_table,
    has_rows,
    print_lines,
    topic_table,
)
from faults import Faults, Work
from replicas import replicas
from stock import ReplicaReader, Transfers
from truth import (
    HERE,
    TABLES,
    Truth,
    Want,
    access_lines,
    access_requests,
    access_sessions,
    change_statements,
    data_files,
)
from versions import Versions
from waiting import LONGEST_WAIT_S, Background, Stuck, until
from watch import Watch

from mainstem.client.connection import Connection
from mainstem.client.reports import read_reports
from mainstem.client.topics import end_offsets, list_topics
from mainstem.connect.local_postgres import LocalPostgres
from mainstem.connect.sources.postgres import mark_position
from mainstem.core import MainstemError, UserError
from mainstem.core.address import free_port
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.core.process import PARENT, start_child

PROJECT = HERE.parent / "flights"
ALL_FLIGHTS = 336_776
BATCH = 1000
SMALL_BATCH = 5  # while processes are killed
SPREAD_S = 200.0  # meanwhile, the next of n steps of the input comes after an n-th of it
# While all jobs have their first batches: 16 to 30 s on two cores. It takes 2 to 5 s when nothing else is done.
NEW_TABLE_S = 60.0
STOP_S = 60.0
BOOKS_SECONDS = 60.0  # the destinations report in their own time
OURS = ".flights_demo"  # the lock on a demo's directory, which may be emptied
SPOILED = {b"{not json": "not_json", b'{"year": "MMXIII"}': "unfit"}  # what a bad producer sends, and why it is refused

Thread = TypeVar("Thread", bound=Background)


def arguments() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--flights", type=int, default=ALL_FLIGHTS, help="how many flights, in scheduled order")
    options.add_argument("--work", type=Path, default=Path(".demo"), help="where all state goes; removed first")
    options.add_argument("--bootstrap", help="run on this Kafka instead of a log of our own")
    options.add_argument("--kill", action="store_true", help="kill -9 each process once meanwhile: the same truth")
    options.add_argument(
        "--new-table-seconds", type=float, default=NEW_TABLE_S, help="how long a new topic may take to become a table"
    )
    options.add_argument("--changes", type=int, default=1000, help="how many changes are read through the views")
    options.add_argument("--only-tables", action="store_true", help="end when all tables are compared")
    options.add_argument("--keep", action="store_true", help="keep everything running at the end")
    options.add_argument("--listen", default="127.0.0.1:0", help="address of the log")
    options.add_argument("--gateway", default="127.0.0.1:0", help="address of registry and collector")
    return options


def main() -> int:
    """Run the demo; the exit code."""
    chosen = arguments().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: what was started is stopped
    try:
        ours = (chosen.work / OURS).exists()
        with DirectoryLock(chosen.work, OURS):
            empty(chosen.work, ours=ours)
            with LocalPostgres(chosen.work / "postgres") as postgres:
                demo = Demo(chosen, postgres)
                try:
                    return demo.run()
                finally:
                    demo.stop()
    except DirectoryInUse as error:
        print(f"demo: {error}: a demo still runs there; end it, or give another --work", file=sys.stderr)
        return 2
    except (Stuck, MainstemError, psycopg2.Error) as error:
        print(f"demo: {the_line(error, chosen.work)}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("demo: interrupted; what it started is stopped", file=sys.stderr)
        return 130


def the_line(error: Exception, work: Path) -> str:
    """What to tell of an error, on one line: what was found, and what to do."""
    said = " ".join(str(error).split())
    if isinstance(error, psycopg2.Error):
        return f"the database: {said} (its log: {work / 'postgres' / 'postgres.log'})"
    hint = error.hint if isinstance(error, MainstemError) else ""
    return f"{said} ({hint})" if hint else said


def empty(work: Path, *, ours: bool) -> None:
    """Remove what an earlier demo left in its directory.

    Raises:
        UserError: it is not `ours`, and holds something.
    """
    left = [path for path in work.iterdir() if path.name != OURS]
    if left and not ours:
        (work / OURS).unlink()
        raise UserError(f"{work}: expected a directory for the demo, found {left[0].name} there; give another --work")
    for path in left:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


class Demo:
    """One run: `run` plays the input and compares; `stop` ends what was started."""

    def __init__(self, options: argparse.Namespace, postgres: LocalPostgres) -> None:
        self.options = options
        self.work: Path = options.work.resolve()
        self.fleet, self.replica = postgres.create_database("fleet"), postgres.create_database("fleet_replica")
        self.project = self.work / "project"  # a copy: its code will be edited
        shutil.copytree(PROJECT, self.project, ignore=shutil.ignore_patterns("__pycache__"))
        self.access_log = self.work / "access.log"
        self.nodes = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2)]  # the same ones after a kill
        self.times: list[tuple[str, float]] = []
        self.began = time.monotonic()
        self.sent: Counter[str] = Counter()  # events by topic: what makes the key of a batch its own
        self.to_post = 0  # events that come while processes are killed
        self.node: subprocess.Popen[str] | None = None
        self.faults: Faults | None = None
        self.transfers: Transfers | None = None
        self.new_table_s = 0.0
        self.threads: list[Background] = []

    def run(self) -> int:
        count = min(self.options.flights, ALL_FLIGHTS)
        early = count // 2
        truth = self.timed(
            "read the input files", lambda: Truth(data_files(self.work), flights=count, before_changes=early)
        )
        self.timed("fill the source database", lambda: fill_database(self.fleet, truth))
        self.timed("mainstem up", self.start)
        self.watch = watch = Watch(self.connection)
        if self.options.kill:
            self.faults = self.started(Faults(self.work / "node", self.start, self.work_of, self.progress, self.check))
        lines = access_lines()
        writer = self.started(Background(lambda: append_slowly(self.access_log, lines, self.pause)))
        reader = self.started(ReplicaReader(self.replica))
        events = truth.flight_events()
        self.timed("post weather", lambda: self.post("weather", truth.weather_events()))
        self.timed(f"post flights 1 to {early:,}", lambda: self.post("flights", islice(events, early)))
        p = watch.data_ends("flights")
        self.waited("flights_enriched has them", "records", watch, lambda: watch.unprocessed("flights_enriched", p))
        self.timed("change planes and airports", lambda: change_database(self.fleet))
        q = mark_position(self.fleet)
        self.waited("the log has the changes", "bytes of the database's log", watch, lambda: watch.behind("fleet", q))
        self.transfers = self.started(Transfers(self.fleet, reader, self.check, self.pause))
        rejected = self.spoil()
        new_table = self.started(Background(lambda: self.see_table("flights.quarantine")))
        self.timed(f"post flights {early + 1:,} to {count:,}", lambda: self.post("flights", events, left=count - early))
        if self.faults is not None:
            self.timed("every process has been killed once", self.faults.finish)
        self.end("flights")
        self.end("weather")
        writer.finish()
        self.access_log.with_name("access.log.end").touch()
        self.timed("parts have been moved", self.transfers.finish)
        end = mark_position(self.fleet)
        self.waited(
            "the log has every change", "bytes of the database's log", watch, lambda: watch.behind("fleet", end)
        )
        outputs = ("flights_enriched", "delays_hourly", "aircraft_days", "access_requests", "access_sessions")
        self.waited("every window and session is closed", "jobs", watch, lambda: len(set(outputs) - watch.ended))
        inputs = ("flights", "flights.quarantine", "weather", "access_log", "fleet.transactions")
        topics = (*inputs, *outputs, *(f"fleet.{table}" for table in TABLES))
        ends = watch.data_ends(*topics)
        self.waited("the tables have everything", "records", watch, lambda: watch.unread("lakehouse", ends))
        changed = {f"fleet.{table}": ends[f"fleet.{table}"] for table in TABLES}
        self.waited("the replica has everything", "records", watch, lambda: watch.unread("replica", changed))
        new_table.finish()
        reader.stop()
        results = self.timed("compare every stage with the truth", lambda: self.compare(truth, lines, rejected))
        results.append(reader.line())
        results += self.new_table()
        said = [each for each in read_reports(self.connection, list_topics(self.connection)) if "@" in each.reader]
        late = sum(each.late for each in said)
        results.append(Line("audit", "rows behind the watermark", len(said), late, 0, bool(said) and late == 0))
        if not self.options.only_tables:
            versions = Versions(self.project, self.work / "node", self.nodes, truth, self.post_one, self.progress)
            self.timed("begin version 2 of delays_hourly", versions.build)
            results += self.answers(self.options.changes)
            results += self.timed(
                "compare both versions, move readers, move them back", lambda: versions.lines(self.options.changes + 1)
            )
            results += self.replicas()
        return self.conclude(results)

    # -- what runs -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """`mainstem up` on a copy of examples/flights; returns when it says that it is up. Once more, it goes on where
        it was.
        """
        environment = os.environ | {
            PARENT: str(os.getpid()),  # it ends with us
            "MAINSTEM_SOURCES__FLEET__URL": self.fleet,
            "MAINSTEM_SOURCES__ACCESS__PATH": str(self.access_log),
            "MAINSTEM_SINKS__REPLICA__URL": self.replica,
            "MAINSTEM_SERVE__ANSWERS__LISTEN": ",".join(self.nodes),
        }
        self.access_log.touch()
        where = ["--bootstrap", self.options.bootstrap] if self.options.bootstrap else ["--listen", self.options.listen]
        command = [sys.executable, "-m", "mainstem", "up", str(self.project), "--data", str(self.work / "node"), *where]
        command += ["--gateway", self.options.gateway]
        self.node = start_child(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.node.stdout is not None
        alarm = threading.Timer(LONGEST_WAIT_S, self.node.kill)
        alarm.daemon = True
        alarm.start()
        for line in self.node.stdout:
            print(f"    {line.rstrip()}", flush=True)
            if " up: log " in line:
                break
        else:
            raise self.ended()
        alarm.cancel()
        threading.Thread(target=self.repeat, args=(self.node.stdout,), daemon=True).start()
        state = json.loads((self.work / "node" / "up.json").read_text())
        self.connection = Connection(state["bootstrap"])
        # trust_env: the gateway is on this machine, where a proxy that variables name does not reach
        self.http = httpx.Client(base_url=state["gateway"], timeout=60, trust_env=False)
        self.options.listen, self.options.gateway = state["bootstrap"], state["gateway"].removeprefix("http://")

    @staticmethod
    def repeat(lines: Iterable[str]) -> None:
        """Print what `mainstem up` says: what waits, fails, or is started again."""
        for line in lines:
            print(f"    {line.rstrip()}", flush=True)

    def stop(self) -> None:
        """Ctrl-C to `mainstem up`, which stops its processes in order."""
        if self.node is not None and self.node.poll() is None:
            self.node.send_signal(signal.SIGINT)
            try:
                self.node.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.node.kill()
                raise Stuck(
                    f"mainstem up did not stop within {STOP_S} s; its logs: {self.work / 'node' / 'logs'}"
                ) from None

    def post(self, topic: str, events: Iterable[dict[str, Any]], left: int | None = None) -> None:
        """Post events in batches, each after the answer to the one before; retried with the same ids until answered.

        Where it is said how many are `left`, they last until all processes have been killed.
        """
        iterator = iter(events)
        while batch := list(islice(iterator, SMALL_BATCH if left is not None and self.killing else BATCH)):
            body = json.dumps(batch, default=as_json).encode()
            results = self.events(topic, body, "application/json", f"{topic}-{self.sent[topic]}")
            refused = [each for each in results if each["status"] not in ("accepted", "duplicate")]
            if refused:
                raise SystemExit(f"{topic}: {len(refused)} events refused, the first: {refused[0]}")
            self.sent[topic] += len(batch)
            if self.sent[topic] % (10 * BATCH) == 0:
                self.progress(f"posted {self.sent[topic]:,} to {topic}")
            if left is not None:
                left -= len(batch)
                self.to_post = left
                self.pause(left // SMALL_BATCH)

    @property
    def killing(self) -> bool:
        return self.faults is not None and self.faults.is_alive()

    def pause(self, left: int) -> None:
        """Before one of so many steps of input that are `left`: while processes are killed, each takes longer than the
        one before, so that however long that takes, there is some until the last of them.
        """
        if self.faults is not None:
            self.faults.join(SPREAD_S / max(1, left))

    def work_of(self, process: str) -> Work:
        """What a process is at while input comes: the source at the database, Spark at jobs, the others at events."""
        if process == "connect":
            if (transfers := self.transfers) is None:
                return Work("transfers", 0, lambda: 0)
            ends = end_offsets(self.connection, "fleet.transactions", committed=True)
            return Work("transfers", sum(ends.values()), lambda: stock.TRANSFERS - transfers.made)
        if "spark" in process.lower():
            watch = self.watch
            return Work(
                "jobs", watch.processed, lambda: watch.unprocessed("flights_enriched", watch.data_ends("flights"))
            )
        return Work("events", self.sent["flights"], lambda: self.to_post)

    def post_one(self, event: dict[str, Any]) -> None:
        """Post one flight; the same one twice is one."""
        self.events("flights", json.dumps([event]).encode(), "application/json", f"flight-{event['flight']}")
        self.sent["flights"] += 1

    def request(self, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        """Post until it is answered: while the gateway is being started again, nobody does."""
        answer: httpx.Response | None = None

        def answered() -> bool:
            nonlocal answer
            try:
                answer = self.http.post(path, content=body, headers=headers)
            except httpx.TransportError:
                return False
            if answer.status_code in (429, 503):
                time.sleep(float(answer.headers.get("retry-after", "0.5")))
                return False
            return True

        until(f"the gateway answers {path}", answered, self.check)
        assert answer is not None
        return answer

    def events(self, topic: str, body: bytes, kind: str, key: str) -> list[dict[str, Any]]:
        """Post events; the same batch with the same key is no duplicate. What became of each of them."""
        headers = {"content-type": kind, "idempotency-key": key}
        answer = self.request(f"/v1/topics/{topic}/events", body, headers).json()
        if "error" in answer:
            raise SystemExit(f"{topic}: {answer['error']}")
        results: list[dict[str, Any]] = answer["results"]
        return results

    def spoil(self) -> int:
        """Send what is no event; each is answered on its own and kept in quarantine. How many were."""
        results = self.events("flights", b"\n".join(SPOILED), "application/x-ndjson", "spoiled")
        return sum(each["status"] == "rejected" for each in results)

    def see_table(self, topic: str) -> None:
        """Take the time until a topic that was made just now is a table, beside all other work."""
        began = time.monotonic()
        tables = self.work / "node" / "tables"
        while self.killing and not has_rows(tables, topic):  # no longest wait: each killed Spark begins its batch again
            time.sleep(0.05)
        until(f"{topic} is a table", lambda: has_rows(tables, topic), self.check)
        self.new_table_s = time.monotonic() - began
        self.progress(f"the new topic {topic} is a table after {self.new_table_s:.1f} s")

    def end(self, topic: str) -> None:
        """Nothing more comes: the last windows may close."""
        self.request(f"/v1/topics/{topic}/end", b"", {}).raise_for_status()

    # -- what came of it -----------------------------------------------------------------------------------------------

    def compare(self, truth: Truth, lines: list[str], rejected: int) -> list[Line]:
        # The truth, and what the topic is made of: events that were sent, or another topic.
        flights = truth.want("flights", "SELECT * EXCLUDE (number, file_row) FROM flights")
        weather = truth.want("weather", "SELECT * FROM weather")
        want: dict[str, tuple[Want, int | str]] = {
            "flights": (flights, self.sent["flights"]),
            "weather": (weather, self.sent["weather"]),
            "access_log": (truth.want("access_log", ((line,) for line in lines)), len(lines)),
            "flights_enriched": (truth.flights_enriched(), "flights"),
            "delays_hourly": (truth.delays_hourly(), "flights_enriched"),
            "aircraft_days": (truth.aircraft_days(), "flights"),
            "access_requests": (truth.want("access_requests", access_requests(lines)), "access_log"),
            "access_sessions": (truth.want("access_sessions", access_sessions(lines)), "access_requests"),
            "flights.quarantine": (truth.want_quarantine(SPOILED), rejected),
        }
        found: list[Line] = []
        gave: dict[str, int] = {}
        for topic, (rows, source) in want.items():
            self.progress(f"  {topic}")
            found += self.compare_topic(topic, source if isinstance(source, int) else gave[source], rows)
            gave[topic] = found[-2].gave
        self.progress("  fleet")
        tables = {name: truth.want(name, f"SELECT * FROM {name}") for name in TABLES if name not in stock.TABLES}
        tables |= {name: truth.want(name, parts.items()) for name, parts in stock.stock().items()}
        made = transactions(truth)
        changed = sum(map(Counter, made), Counter[str]())
        for name, rows in tables.items():
            found += self.compare_topic(f"fleet.{name}", changed[name], rows)
            found.append(compare("replica", name, found[-2].gave, database_table(self.replica, name), rows))
        found += self.compare_topic("fleet.transactions", len(made), truth.want_transactions(made))
        found.append(self.compare_names())
        return found

    def compare_topic(self, topic: str, took: int, want: Want) -> list[Line]:
        """A topic and its Delta table."""
        rows = topic_table(self.connection, self.http, topic)
        return compare_topic_and_table(topic, took, rows, delta_table(self.work / "node" / "tables", topic), want)

    def answers(self, changes: int) -> list[Line]:
        """Views that show what was just written, while their nodes are killed."""
        answers = Answers(
            self.fleet, str(self.http.base_url).rstrip("/"), self.nodes, self.work / "node", self.check, self.progress
        )
        self.timed(f"change planes {changes:,} times, read each through every view", lambda: answers.run(changes))
        self.progress(f"  {answers.told()}")
        self.sent["flights"] += answers.posted
        return answers.lines(changes)

    def replicas(self) -> list[Line]:
        """Services that are replicated through the log."""
        lines: list[Line] = self.timed(
            "a replicated service, both ways, while its nodes die", lambda: replicas(self.connection.bootstrap, print)
        )
        return lines

    def new_table(self) -> list[Line]:
        """How long a new topic took to be a table; nothing where processes are killed, or may be, as on a Kafka."""
        if self.faults is not None or self.options.bootstrap:
            return []
        bound = self.options.new_table_seconds
        took, name = math.ceil(self.new_table_s), f"seconds until a new one, at most {bound:g}"
        return [Line("tables", name, None, took, math.floor(bound), took <= bound, f"it took {self.new_table_s:.1f} s")]

    def compare_names(self) -> Line:
        """Every topic that has records is a table, whoever made it."""
        names = [name for name in list_topics(self.connection) if not name.startswith("_")]
        filled = {name for name in names if any(end_offsets(self.connection, name).values())}
        there = {path.name for path in (self.work / "node" / "tables").iterdir() if (path / "_delta_log").is_dir()}
        note = "" if there == filled else f"missing {sorted(filled - there)}, extra {sorted(there - filled)}"
        return Line("tables", "one for each topic", len(filled), len(there), len(filled), not note, note)

    def conclude(self, results: list[Line]) -> int:
        print()
        print_lines(results)
        for line in results:
            if not line.equal:
                print(f"NOT EQUAL: {line.stage} {line.name}: {line.note}")
        print("\nthe books (mainstem audit):")
        balanced = self.audit()
        print("\ntime of each stage:")
        for what, seconds in self.times:
            print(f"  {seconds:7.1f} s  {what}")
        print(f"  {time.monotonic() - self.began:7.1f} s  in all")
        wrong = [f"{line.stage} {line.name}" for line in results if not line.equal] + ["the books"] * (not balanced)
        print(f"\nNOT ALL EQUAL: {', '.join(wrong)}" if wrong else "\nall equal")
        if self.options.keep:
            assert self.node is not None
            print(f"\nstill up; Ctrl-C stops it\n{self.ways_in()}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                self.node.wait()
        return 1 if wrong else 0

    def ways_in(self) -> str:
        """Where everything is, and commands that show it."""
        mainstem = Path(sys.executable).with_name("mainstem")
        return "\n".join((
            f"  log        {self.connection.bootstrap}",
            f"  gateway    {self.http.base_url}",
            f"  database   {self.fleet}",
            f"  replica    {self.replica}",
            f"  tables     {self.work / 'node' / 'tables'}",
            f"  {mainstem} status --data {self.work / 'node'}",
            f"  {mainstem} tail flights_enriched --bootstrap {self.connection.bootstrap}",
        ))  # fmt: skip

    def audit(self) -> bool:
        """Whether the books balance, of every reader to its last record; the last reports may still be on their way."""
        audit = [sys.executable, "-m", "mainstem", "audit", "--complete", "--bootstrap", self.connection.bootstrap]
        deadline = time.monotonic() + BOOKS_SECONDS
        while True:
            done = subprocess.run(audit, check=False, stdout=subprocess.PIPE, text=True)
            if done.returncode == 0 or time.monotonic() > deadline:
                print(done.stdout, end="")
                return done.returncode == 0
            time.sleep(1)

    def timed(self, what: str, work: Callable[[], Any]) -> Any:
        self.progress(what)
        began = time.monotonic()
        result = work()
        self.times.append((what, time.monotonic() - began))
        return result

    def waited(self, what: str, unit: str, watch: Watch, left: Callable[[], int]) -> None:
        self.timed(what, lambda: watch.wait(what, left, unit=unit, check=self.check, tell=self.progress))

    def started(self, thread: Thread) -> Thread:
        """Start a thread; from now on its error is noticed wherever something is waited for."""
        thread.start()
        self.threads.append(thread)
        return thread

    def check(self) -> None:
        """Raise what ended a thread.

        Raises:
            Stuck: `mainstem up` has ended, and nobody is starting it again.
        """
        for thread in self.threads:
            thread.check()
        assert self.node is not None
        restarting = self.faults is not None and self.faults.restarting
        if self.node.poll() is not None and not restarting:
            raise self.ended()

    def ended(self) -> Stuck:
        """`mainstem up` has ended: what to tell of it."""
        assert self.node is not None
        return Stuck(f"mainstem up ended with exit code {self.node.wait()}; its logs: {self.work / 'node' / 'logs'}")

    def progress(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)


def as_json(value: Any) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


def fill_database(dsn: str, truth: Truth) -> None:
    """Airlines, airports and planes as in the files, and the stock of spare parts."""
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            for table, rows in first_rows(truth).items():
                cursor.execute(f"CREATE TABLE {table} ({TABLES[table]})")
                places = ", ".join(["%s"] * len(rows[0]))
                cursor.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
    finally:
        connection.close()


def first_rows(truth: Truth) -> dict[str, list[tuple[object, ...]]]:
    """What each table of the database holds before anything is changed."""
    files = {"airlines": "airlines", "airports": "airports_before", "planes": "planes_before"}
    rows = {table: truth.rows(f"SELECT * FROM {name}") for table, name in files.items()}
    return rows | {table: list(parts.items()) for table, parts in stock.stock(transfers=0).items()}


def transactions(truth: Truth) -> list[dict[str, int]]:
    """Every transaction of the source, in order: how many rows of which tables. The first is the initial load."""
    load = {table: len(rows) for table, rows in first_rows(truth).items()}
    moved = [{each.giving: 1, each.taking: 1} for each in stock.schedule()]
    return [load, *truth.changed, *moved]


def change_database(dsn: str) -> None:
    """`changes.sql`, each statement a transaction of its own."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in change_statements():
            cursor.execute(statement)
    connection.close()


def append_slowly(path: Path, lines: list[str], pause: Callable[[int], None]) -> None:
    """Write the access log as a web server does: some lines at a time, sometimes half of one."""
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(lines), 100):
            pause((len(lines) - start) // 100)
            text = "".join(line + "\n" for line in lines[start : start + 100])
            middle = len(text) // 2
            file.write(text[:middle])
            file.flush()
            time.sleep(0.02)
            file.write(text[middle:])
            file.flush()


if __name__ == "__main__":
    sys.exit(main())
