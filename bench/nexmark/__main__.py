"""Nexmark on Mainstem and on other engines, on one log, in one run.

    python -m bench.nexmark [--events 5000000] [--runs 3] [--only q5,q8] [--engines mainstem,quix] [--keep DIR]

The embedded log runs as a process and is filled once. Then each engine drains the backlog of each query, in turn, each
as processes of its own: wall time from the first record in hand to the last commit, the start until then apart; seconds
of the processors and highest memory of all its processes. A figure whose rows differ from DuckDB's is void. At the
end events come at a steady rate (`bench/nexmark/latency.py`).
"""

import argparse
import contextlib
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from bench.nexmark.drain import Drained, drain
from bench.nexmark.engines import ENGINES, Engine, inputs_of
from bench.nexmark.events import generate
from bench.nexmark.fill import IDS, TOPICS, fill, kind_of, prepare, write_schemas, write_side
from bench.nexmark.latency import steady
from bench.nexmark.oracle import QUERIES, READS, Oracle
from bench.report import RESULTS, Report
from bench.servers import mainstem_server
from mainstem.client.connection import Connection
from mainstem.client.topics import delete

STEADY = ("q1", "q5", "q18")
"""The queries that are measured at a steady rate too: without state, with windows, with a row for each event."""
_DAY_MS = 86_400_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join(QUERIES), help="queries, with commas between them")
    parser.add_argument("--engines", default=",".join(ENGINES), help="with commas between them")
    parser.add_argument("--rate", type=int, default=20_000, help="events per second of the steady runs")
    parser.add_argument("--seconds", type=int, default=60, help="of a steady run; 0: none")
    parser.add_argument("--patience", type=float, default=900, help="seconds for one engine on one query")
    parser.add_argument("--keep", type=Path, default=RESULTS, help="directory for what is printed")
    arguments = parser.parse_args()
    queries, engines = arguments.only.split(","), [ENGINES[name] for name in arguments.engines.split(",")]
    if missing := [engine.name for engine in engines if not engine.is_there]:
        parser.error(f"{', '.join(missing)}: not installed; `make bench-jobs` does that")
    report = Report("nexmark", arguments.keep)
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nexmark-", ignore_cleanup_errors=True)))
        server, _ = stack.enter_context(mainstem_server(home))
        connection = Connection(server.bootstrap)
        # Of yesterday: what is older than a week, the log deletes at once, also from the topics that engines make.
        yesterday = (int(time.time() * 1000) // _DAY_MS - 1) * _DAY_MS
        events = generate(arguments.events, base_ms=yesterday)
        oracle = Oracle(events)
        write_schemas(connection, IDS)
        prepare(connection, IDS)
        for encoding in sorted({engine.encoding for engine in engines}):
            topics = {topic for query in queries for topic in inputs_of(query, encoding)}
            began = time.monotonic()
            size = fill(connection.bootstrap, events, {t: TOPICS[encoding][t] for t in sorted(topics)}, encoding)
            number = sum(len(events.kinds[kind_of(topic)]) for topic in topics)
            report.say(
                f"{encoding}: {number:,} events, {size / number:.0f} bytes each, in {time.monotonic() - began:.0f} s"
            )
        found: dict[tuple[str, str], list[Drained]] = {}
        for query in queries:
            reads = sum(len(events.kinds[kind]) for kind in READS[query])
            report.say(f"\n{query}: {reads:,} events, {oracle.expected(query):,} rows")
            for run in range(arguments.runs):
                for engine in engines:
                    found.setdefault((query, engine.name), []).append(
                        one(engine, query, f"r{run}", connection, oracle, home, report, arguments.patience, reads)
                    )
        table(queries, engines, found, {q: sum(len(events.kinds[k]) for k in READS[q]) for q in queries}, report)
    if arguments.seconds:
        steady([query for query in STEADY if query in queries], engines, arguments.rate, arguments.seconds, report)


def one(
    engine: Engine,
    query: str,
    number: str,
    connection: Connection,
    oracle: Oracle,
    home: Path,
    report: Report,
    patience: float,
    reads: int,
) -> Drained:
    state = home / f"{engine.name}-{query}-{number}"
    if query in engine.lacks:
        return Drained(0, 0, 0, 0, 0, None, engine.lacks[query])
    state.mkdir()
    write_side(state / "side.json")
    done = drain(engine, query, number, connection, oracle, state, patience)
    if done.verdict is None:
        report.say(f"  {engine.name:10} has not come to the end")
        report.keep(f"{engine.name} {query}", done.trouble)
    else:
        rate = reads / done.seconds
        report.say(
            f"  {engine.name:10} start {done.start:5.1f} s, drain {done.seconds:7.2f} s, {rate:9,.0f} events/s, "
            f"{done.cpu:6.1f} CPU s ({done.start_cpu:.1f} of them before), {done.memory:6,.0f} MB; {done.verdict}"
        )
    shutil.rmtree(state, ignore_errors=True)
    with contextlib.suppress(Exception):
        delete(connection, [engine.run(query, number, connection.bootstrap, state).output])
    return done


def table(
    queries: list[str],
    engines: list[Engine],
    found: dict[tuple[str, str], list[Drained]],
    reads: dict[str, int],
    report: Report,
) -> None:
    """Medians of the runs whose rows were equal."""
    report.say("\nevents/s, medians; the seconds of the processors, and the highest memory in MB")
    for query in queries:
        for engine in engines:
            runs = found[query, engine.name]
            good = [each for each in runs if each.verdict is not None and each.verdict.equal]
            if query in engine.lacks:
                report.say(f"{query:4} {engine.name:10} none: {engine.lacks[query]}")
            elif len(good) < len(runs):
                report.say(f"{query:4} {engine.name:10} void: {len(runs) - len(good)} of {len(runs)} runs were wrong")
            else:
                rate = reads[query] / statistics.median(each.seconds for each in good)
                cpu = statistics.median(each.cpu for each in good)
                memory = statistics.median(each.memory for each in good)
                start = statistics.median(each.start for each in good)
                report.say(
                    f"{query:4} {engine.name:10} {rate:10,.0f}/s  start {start:5.1f} s  {cpu:7.1f} CPU s  "
                    f"{memory:6,.0f} MB  {engine.guarantee}"
                )


if __name__ == "__main__":
    main()
