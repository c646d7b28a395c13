"""Reading what was just written: an aircraft is changed in the database, and read through every view with the token.

A session changes aircraft of its own, one after the other, as a service with its own database would:

    1. UPDATE planes …; the position of the database after it     2. GET /token of the gateway: the log has it
    3. the aircraft by its key, at any node     4. found by words     5. a flight of it is posted     6. the flight, as
    the job has enriched it, by SQL

The client is one that keeps cookies, no more: the token travels in one. Meanwhile the nodes are killed in turn. Before
step 2 the same is read without a token: what is old then is counted, and shows that the others were waited for.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg2
from check import Line
from waiting import LONGEST_WAIT_S, Background, Stuck

SESSIONS = 60
TELL_EVERY = 100  # changes
KILLS_EACH = 4  # evenly over the changes
AFTER_ALL = datetime(2014, 1, 17, tzinfo=UTC)  # of the input
CARRIER = "ZZ"  # no airline's: its flights are of the sessions alone


class Answers:
    """`run`, then `lines`.

    Args:
        database: of the fleet.
        gateway: its address.
        nodes: addresses of the serving nodes, each with the same views.
        data: the data directory of `mainstem up`.
        check: raises where there is nothing to wait for any more.
        tell: takes a line about how far it is.
    """

    def __init__(
        self,
        database: str,
        gateway: str,
        nodes: list[str],
        data: Path,
        check: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self.posted = 0
        self._tell = tell
        self._database, self._gateway, self._nodes, self._data, self._check = database, gateway, nodes, data, check
        self._reads: Counter[str] = Counter()
        self._old: Counter[str] = Counter()
        self._read = self._kills = 0
        self._done = threading.Event()
        self._changed = threading.Semaphore(0)  # once for each change that was read
        self._lock = threading.Lock()
        self._slowest = 0.0

    def run(self, changes: int) -> None:
        """Make so many changes, and read each through every view."""
        planes = self._planes()
        killer = Background(lambda: self._kill_nodes(changes))
        killer.start()
        numbers = itertools.count(1)
        sessions = min(SESSIONS, changes)
        try:
            with ThreadPoolExecutor(sessions) as threads:
                jobs = [
                    threads.submit(self._session, number, planes[number::sessions], numbers, changes)
                    for number in range(sessions)
                ]
                for job in jobs:
                    job.result()
        finally:
            self._done.set()
            self._changed.release(changes)
        killer.finish()

    def lines(self, changes: int) -> list[Line]:
        """What came of it: no read with a token is old; some without one are, or nothing was shown.

        It takes a hundred changes until this can be seen.
        """
        found = []
        for view in ("by key", "by words", "through a job, by SQL"):
            reads, old = self._reads[view], self._old[view]
            found.append(Line("answers", f"{view}: old ones", reads, old, 0, reads == changes and old == 0))
        reads, old = self._reads["without a token"], self._old["without a token"]
        note = f"of {reads:,} reads"
        found.append(Line("answers", "old ones without a token, at least 1", reads, old, 1, old > 0, note))
        enough = self._kills > 1
        found.append(Line("answers", "nodes killed meanwhile, at least 2", None, self._kills, 2, enough))
        return found

    def told(self) -> str:
        return f"{self._reads['by key']:,} changes read three ways each, {self._kills} kills, slowest {self._slowest:.1f} s"

    # -- a session

    def _session(self, number: int, planes: list[str], numbers: Iterator[int], changes: int) -> None:
        with (
            httpx.Client(timeout=60, trust_env=False) as http,
            httpx.Client(timeout=60, trust_env=False) as forgetful,
            contextlib.closing(psycopg2.connect(self._database)) as database,
        ):
            database.autocommit = True
            for tailnum in itertools.cycle(planes):
                change = next(numbers)
                if change > changes:
                    return
                self._check()
                self._change(http, forgetful, database, tailnum, change)
                self._changed.release()

    def _change(self, http: httpx.Client, forgetful: httpx.Client, database: Any, tailnum: str, change: int) -> None:
        seats = 1000 + change  # no two changes have the same
        with database.cursor() as cursor:
            cursor.execute("UPDATE planes SET seats = %s WHERE tailnum = %s", (seats, tailnum))
            cursor.execute("SELECT pg_current_wal_lsn()")
            (lsn,) = cursor.fetchone()
        forgetful.cookies.clear()
        self._count("without a token", self._by_key(forgetful.get, tailnum), seats)
        self._ask(lambda: http.get(f"{self._gateway}/token", params={"source": "fleet", "lsn": lsn, "timeout": 60}))
        began = time.monotonic()
        self._count("by key", self._by_key(http.get, tailnum), seats)
        self._count("by words", self._by_words(http, tailnum), seats)
        self._post(http, tailnum, change)
        self._count("through a job, by SQL", self._by_sql(http, change), seats)
        with self._lock:
            self._slowest = max(self._slowest, time.monotonic() - began)
            self._read += 1
            if self._read % TELL_EVERY == 0:
                self._tell(f"  {self._read:,} changes read, {self._kills} kills")

    def _by_key(self, get: Callable[..., httpx.Response], tailnum: str) -> Any:
        answer = self._ask(lambda: get(self._at("planes/row"), params={"tailnum": tailnum, "timeout": 60}))
        return answer.json()["row"]["seats"]

    def _by_words(self, http: httpx.Client, tailnum: str) -> Any:
        query: dict[str, str | int] = {"q": f"tailnum:{tailnum}", "timeout": 60}
        hits = self._ask(lambda: http.get(self._at("names/search"), params=query)).json()["hits"]
        return hits[0]["row"]["seats"] if len(hits) == 1 else None

    def _by_sql(self, http: httpx.Client, change: int) -> Any:
        sql = "SELECT seats FROM flights_enriched WHERE carrier = ? AND flight = ?"
        body = {"sql": sql, "parameters": [CARRIER, change]}
        rows = self._ask(lambda: http.post(self._at("flights/query"), params={"timeout": 60}, json=body)).json()["rows"]
        return rows[0][0] if len(rows) == 1 else None

    def _post(self, http: httpx.Client, tailnum: str, change: int) -> None:
        event = flight(tailnum, change)
        key = {"idempotency-key": f"answers-{change}", "content-type": "application/json"}
        url = f"{self._gateway}/v1/topics/flights/events"
        self._ask(lambda: http.post(url, content=json.dumps(event), headers=key))
        with self._lock:
            self.posted += 1

    def _at(self, path: str) -> str:
        return f"http://{random.choice(self._nodes)}/views/{path}"

    def _ask(self, ask: Callable[[], httpx.Response]) -> httpx.Response:
        """Ask until it is answered: a node that was killed is started again, and the other one is there meanwhile."""
        deadline = time.monotonic() + LONGEST_WAIT_S
        while True:
            try:
                answer = ask()
            except httpx.TransportError as error:
                told = str(error)
            else:
                if answer.status_code == 200:
                    return answer
                told = answer.text
                if answer.status_code not in (429, 503):
                    raise Stuck(f"{answer.request.url}: {told}")
            if time.monotonic() > deadline:
                raise Stuck(f"no answer for {LONGEST_WAIT_S:.0f} s: {told}")
            self._check()
            self._done.wait(0.1)

    def _count(self, what: str, found: Any, seats: int) -> None:
        with self._lock:
            self._reads[what] += 1
            self._old[what] += found != seats

    # -- around them

    def _planes(self) -> list[str]:
        with contextlib.closing(psycopg2.connect(self._database)) as database, database.cursor() as cursor:
            cursor.execute("SELECT tailnum FROM planes ORDER BY tailnum")
            return [tailnum for (tailnum,) in cursor]

    def _kill_nodes(self, changes: int) -> None:
        """One after the other while all run: one that was killed again and again is started later and later."""
        kills = KILLS_EACH * len(self._nodes)
        for number in range(kills):
            for _ in range(changes // (kills + 1)):
                self._changed.acquire()
            while not self._done.wait(0.1):
                state = json.loads((self._data / "up.json").read_text())
                nodes = [each for each in state["children"] if each["name"].startswith("serve-")]
                if all(each["state"] == "running" for each in nodes):
                    os.kill(nodes[number % len(nodes)]["pid"], signal.SIGKILL)
                    self._kills += 1
                    break


def flight(tailnum: str, number: int) -> dict[str, Any]:
    """A flight that no airline has flown, after all others: one a minute."""
    at = AFTER_ALL + timedelta(minutes=number)
    scheduled, clock = at.strftime("%Y-%m-%dT%H:%M:00Z"), at.hour * 100 + at.minute
    return {
        "year": at.year, "month": at.month, "day": at.day, "hour": at.hour, "minute": at.minute,
        "time_hour": at.strftime("%Y-%m-%dT%H:00:00Z"), "scheduled_at": scheduled,
        "sched_dep_time": clock, "sched_arr_time": clock, "dep_time": clock, "arr_time": clock,
        "dep_delay": 0, "arr_delay": 0, "air_time": 60, "distance": 100,
        "carrier": CARRIER, "flight": number, "tailnum": tailnum, "origin": "EWR", "dest": "IAH",
    }  # fmt: skip
