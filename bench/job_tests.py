"""What a test of a job takes with `mainstem.testing`: the session's start, then the first test, and later ones.

    python -m bench.job_tests [--sessions 3] [--tests 8] [--keep DIR]

Two jobs, one without state and one window that is fed and closed by the clock, four batches. Each test loads the
project anew, as a test of its own would. Seconds of the clock, and of the processor, this process' and all that it has
started.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from bench.report import RESULTS, Report
from mainstem.testing import jobs_of, session

JOBS = """
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F

orders = topic("orders", event_time="at")

@stream(to="large")
def large(orders):
    return orders.where("cents > 10")

@table(to="hourly", key="hour", watermark=("at", "10 minutes"))
def hourly(orders):
    hours = orders.groupBy(F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))
    return hours.select(F.col("window.start").alias("hour"), "cents")
"""
COLUMNS = {"orders": "id long, at timestamp, cents long"}
KINDS = {"large": "no state", "hourly": "a window"}


class Took(msgspec.Struct):
    """Of one step, in seconds."""

    clock: float
    processor: float


class Stopwatch:
    """From when it is made."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), _used()

    def took(self) -> Took:
        return Took(time.perf_counter() - self._began, _used() - self._used)


def _used() -> float:
    own = psutil.Process()
    found = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return float(sum(each.user + each.system + each.children_user + each.children_system for each in found))


def measure(tests: int) -> dict[str, list[Took]]:
    """One session, in this process."""
    found: dict[str, list[Took]] = {"session": [], **{name: [] for name in KINDS}}
    watch = Stopwatch()
    with session() as spark, tempfile.TemporaryDirectory() as directory:
        found["session"].append(watch.took())
        (Path(directory) / "jobs.py").write_text(JOBS)
        (Path(directory) / "mainstem.toml").touch()
        for _ in range(tests):
            for name in KINDS:
                watch = Stopwatch()
                with jobs_of(directory, spark, columns=COLUMNS).start(name) as job:
                    rows = job.feed(orders=[{"id": 1, "at": "2026-05-01T12:00", "cents": 20}])
                    rows += job.advance("2026-05-01T15:00")
                assert len(rows) == 1, rows
                found[name].append(watch.took())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--tests", type=int, default=8, help="of each kind, in each session")
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for what is printed")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.one:
        print(msgspec.json.encode(measure(options.tests)).decode())
        return
    report = Report("job_tests", options.keep)
    rounds = []
    for _ in range(options.sessions):
        command = [sys.executable, "-m", "bench.job_tests", "--one", "--tests", str(options.tests)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rounds.append(msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, list[Took]]))
        for name, took in rounds[-1].items():
            each = ", ".join(f"{one.clock:.2f} ({one.processor:.2f})" for one in took)
            report.say(f"{KINDS.get(name, name)}: {each}")
    report.say("")
    report.say("medians, in seconds of the clock (of the processor)")
    for name in rounds[0]:
        first = [each[name][0] for each in rounds]
        later = [one for each in rounds for one in each[name][1:]]
        line = f"{KINDS.get(name, name):10} first {_medians(first)}"
        report.say(line + (f", later {_medians(later)}" if later else ""))


def _medians(found: list[Took]) -> str:
    clock, processor = (statistics.median(getattr(each, name) for each in found) for name in ("clock", "processor"))
    return f"{clock:.2f} ({processor:.2f})"


if __name__ == "__main__":
    main()
