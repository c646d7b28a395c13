"""A second version of a job, built beside the first while flights arrive; its readers move to it, and back.

    1. the code is edited: cancelled flights leave the mean of delays_hourly     2. `mainstem job reprocess`
    3. `mainstem job diff`: both versions at one position     4. `job cutover`: views and the lakehouse in one step
    5. reads with its token     6. `job revert`, and reads once more

Every row that is read is compared with the truth of the version that it must be of.
"""

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pyarrow.compute as pc
from answers import AFTER_ALL, flight
from check import Line, compare, delta_table, in_pieces
from truth import Truth
from waiting import Background, Stuck

JOB = "delays_hourly"
EDIT = ('F.avg(F.coalesce("dep_delay", F.lit(0)))', 'F.avg("dep_delay")')
"""What the second version has otherwise: the mean is of the flights that left."""
EVERY_S = 0.2  # a flight of somebody else's
PAGE = 10_000


class Versions:
    """`build`, then `lines`, between which it may take its time.

    Args:
        project: the directory of the project, whose code is edited.
        data: the data directory of `mainstem up`.
        nodes: addresses of the serving nodes.
        truth: what must come of the flights.
        post: posts one more flight.
        tell: is told what is done.
    """

    def __init__(
        self,
        project: Path,
        data: Path,
        nodes: list[str],
        truth: Truth,
        post: Callable[[dict[str, Any]], None],
        tell: Callable[[str], None],
    ) -> None:
        self._project, self._data, self._nodes, self._post, self._tell = project, data, nodes, post, tell
        self._want = {version: truth.delays_hourly(cancelled_in_mean=version == "1") for version in ("1", "2")}
        self._done = threading.Event()

    def build(self) -> None:
        """Edit the code, and ask for the second version; it is built from here on."""
        code = self._project / "jobs.py"
        text = code.read_text()
        before, after = EDIT
        if text.count(before) != 1:
            raise Stuck(f"{code}: expected {before} once")
        code.write_text(text.replace(before, after))
        self._job("reprocess", JOB)

    def lines(self, first: int) -> list[Line]:
        """Compare the versions, move the readers, and move them back, while flights arrive.

        Args:
            first: number of the first of these flights.
        """
        flights = Background(lambda: self._fly(first))
        flights.start()
        try:
            self._job("versions", JOB)
            found = self._diff()
            moved = self._job("cutover", JOB, "2", "--yes")
            found += self._read("2", "after the cutover", moved["basis"])
            back = self._job("revert", JOB)
            found += self._read("1", "after the revert", back["basis"])
        finally:
            self._done.set()
        flights.finish()
        return found

    # -- the commands

    def _job(self, command: str, *arguments: str) -> Any:
        """`mainstem job …`: what it answers as JSON."""
        given = [command, *arguments, "--data", str(self._data)]
        self._tell(f"  mainstem job {' '.join([command, *arguments])}")
        done = subprocess.run(
            [sys.executable, "-m", "mainstem", "job", *given, "--json"], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise Stuck(f"mainstem job {' '.join(given)}: {done.stderr.strip()}")
        for line in done.stderr.splitlines():
            self._tell(f"    {line}")
        return json.loads(done.stdout)

    def _diff(self) -> list[Line]:
        """Both versions at one position: where a flight of an hour was cancelled its mean differs, and nothing else."""
        found = self._job("diff", JOB, "1", "2")
        columns = {each["column"]: each["rows"] for each in found["columns"] if each["rows"]}
        with duckdb.connect() as db:
            for version, want in self._want.items():
                db.register(f"v{version}", want.rows)
            other = "v1.mean_dep_delay IS DISTINCT FROM v2.mean_dep_delay"
            query = f"SELECT count(*) FILTER ({other}) FROM v1 JOIN v2 USING (origin, hour)"
            ((changed,),) = db.execute(query).fetchall()
        other_rows = found["added"] + found["removed"]
        return [
            Line("versions", "diff: added or removed", None, other_rows, 0, other_rows == 0),
            Line("versions", "diff: changed", None, found["changed"], changed, found["changed"] == changed),
            Line("versions", "diff: in the mean alone", None, columns.get("mean_dep_delay", 0), changed,
                 columns == {"mean_dep_delay": changed}),
        ]  # fmt: skip

    # -- what readers see

    def _read(self, version: str, when: str, basis: str) -> list[Line]:
        """All rows, through the view of each node and in the lakehouse."""
        found = []
        for number, node in enumerate(self._nodes, 1):
            rows = self._rows(node, basis)
            found.append(self._same(version, f"{when}, view of node {number}", rows))
        table = delta_table(self._data / "views", JOB).drop_columns(["_key", "_partition", "_offset", "_timestamp"])
        found.append(self._same(version, f"{when}, view of the lakehouse", table))
        return found

    def _same(self, version: str, name: str, rows: pa.Table) -> Line:
        """Hold rows against the truth of a version; the hours after all input have the flights that came meanwhile."""
        before = rows.filter(pc.less(rows["hour"], pa.scalar(AFTER_ALL, rows.schema.field("hour").type)))
        return compare("versions", name, None, before, self._want[version])

    def _rows(self, node: str, basis: str) -> pa.Table:
        rows: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": PAGE, "timeout": 60}
        with httpx.Client(
            base_url=f"http://{node}", headers={"Mainstem-Basis": basis}, timeout=90, trust_env=False
        ) as http:
            while True:
                answer = http.get("/views/delays/rows", params=query)
                if answer.status_code != 200:
                    raise Stuck(f"{answer.request.url}: {answer.text}")
                page = answer.json()
                rows += (row | {"hour": datetime.fromisoformat(row["hour"])} for row in page["rows"])
                if page["after"] is None:
                    return in_pieces(iter(rows), self._want["1"].rows.schema)
                query["after"] = page["after"]

    def _fly(self, first: int) -> None:
        """Flights of another airline, one after the other."""
        for number in itertools.count(first):
            if self._done.wait(EVERY_S):
                return
            self._post(flight("N10156", number))
