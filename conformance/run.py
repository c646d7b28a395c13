"""Other people's test suites, unmodified, against `mainstem log start`: `make conformance`.

    python -m conformance.run [SUITE ...] [--kafka] [--only NAMES] [--write]

Each suite gets a fresh log in a temporary directory, or with --kafka a broker of Apache Kafka 4.3.0. What it found is
held against its list, conformance/<suite>.toml; exit 1 where a test of the list does not pass any more, or one that the
list does not name does not pass. What the suite and the broker printed stays in .conformance/<suite>.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from conformance.connect import Connect
from conformance.door import Door
from conformance.frame import (
    Difference,
    Expected,
    KafkaServer,
    LogServer,
    Restarts,
    Result,
    Server,
    Suite,
    differences,
    read_expected,
    write_expected,
)
from conformance.kcat import Kcat
from conformance.kgo import Kgo, KgoChaos, KgoRestarts, KgoTls
from conformance.librdkafka import SUBSCRIBING, Librdkafka
from conformance.streams import Streams
from conformance.tools.suite import KafkaTools
from mainstem.core.errors import MainstemError
from mainstem.core.locks import DirectoryLock

SUITES: Mapping[str, Suite] = {
    "kgo": Kgo(),
    "kgo-tls": KgoTls(),
    "kgo-chaos": KgoChaos(),
    "kgo-restarts": KgoRestarts(),
    "librdkafka": Librdkafka("librdkafka"),
    "librdkafka-consumer": Librdkafka("librdkafka-consumer", numbers=SUBSCRIBING, protocol="consumer"),
    "librdkafka-noautocreate": Librdkafka("librdkafka-noautocreate", "noautocreate", auto_create=False),
    "librdkafka-sasl": Librdkafka("librdkafka-sasl", sasl=True, numbers=("0135", "0142")),
    "kcat": Kcat(),
    "tools": KafkaTools(),
    "connect": Connect(),
    "streams": Streams(),
}
KEPT = Path(__file__).parents[1] / ".conformance"
CAME_BACK = "(the broker came back each time)"
TOLD_SECONDS = 1.0  # a test that took longer, or did not pass, is told when it ends


def run(name: str, suite: Suite, *, on_kafka: bool, only: str | None, write: bool) -> bool:
    """Run one suite and tell what it came to; whether all is as its list says."""
    say = _teller(name)
    expected = read_expected(suite.expected)
    began = time.monotonic()
    suite.prepare()
    say(f"{suite.title}, against {'Apache Kafka 4.3.0' if on_kafka else 'mainstem log start'}")
    work = KEPT / f"{name}-kafka" if on_kafka else KEPT / name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix=f"conformance-{name}-") as directory,
        _server(suite, Path(directory), work, on_kafka=on_kafka) as server,
        _restarts(suite, server, results),
    ):
        for result in suite.run(server, work, only):
            results.append(result)
            if result.seconds >= TOLD_SECONDS or result.outcome != "passed":
                say(f"{result.outcome:8} {result.seconds:7.1f} s  {result.name}")
    found = _of_kafka(expected, results) if on_kafka else differences(expected, results, whole=only is None)
    if write and not on_kafka and only is None:
        write_expected(suite.expected, results)
    for line in table(expected, results, found):
        say(line)
    counts = Counter(result.outcome for result in results)
    worse = sum(difference.is_worse for difference in found)
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    verdict = "as the list says" if not found else f"{len(found)} not as the list says, {worse} of them worse"
    say(f"{len(results)} tests in {time.monotonic() - began:.0f} s: {told}; {verdict}. Output: {work}")
    return not worse


@contextmanager
def _server(suite: Suite, directory: Path, work: Path, *, on_kafka: bool) -> Iterator[Server]:
    """The broker, running; what it writes about itself is kept in `work`."""
    with Door() if suite.restarts else nullcontext() as door:
        advertised = door.port if door else None
        server: Server = (
            KafkaServer(directory, suite.kafka_settings, advertised)
            if on_kafka
            else LogServer(directory, suite.log_settings, advertised)
        )
        if door:
            door.target = server.port
        try:
            server.start()
            yield server
        finally:
            server.close()
            if server.said.exists():
                shutil.copy(server.said, work / "broker.log")


@contextmanager
def _restarts(suite: Suite, server: Server, results: list[Result]) -> Iterator[None]:
    """End the broker now and then where the suite wants that; that it always came back is one more result."""
    if not suite.restarts:
        yield
        return
    with Restarts(server) as restarts:
        yield
    print(f"the broker was ended and came back {restarts.count} times", flush=True)
    results.append(Result(CAME_BACK, "failed" if restarts.failure else "passed", why=restarts.failure or ""))


def _of_kafka(expected: Expected, results: Sequence[Result]) -> list[Difference]:
    """Where the list is wrong about Apache Kafka; what the log passes and Kafka does not is no fault of anybody."""
    found = []
    for result in results:
        known = expected.of(result.name)
        listed = known.kafka if known is not None else "passed"
        if listed != result.outcome:
            text = f"{result.outcome}; the list says {listed}"
            found.append(Difference(result.name, text, is_worse=known is not None))
    return found


def table(expected: Expected, results: Sequence[Result], found: Sequence[Difference]) -> list[str]:
    """A line for each test that did not pass or is not as the list says: outcome, seconds, name, why."""
    texts = {difference.name: difference for difference in found}
    lines = []
    for result in results:
        difference = texts.pop(result.name, None)
        if result.outcome == "passed" and difference is None:
            continue
        mark = " " if difference is None else "!" if difference.is_worse else "+"
        lines.append(f"{mark} {result.outcome:8} {result.seconds:7.1f} s  {result.name}")
        if difference is not None:
            lines.append(f"{'':22}{difference.text}")
        if known := expected.of(result.name):
            lines.append(f"{'':22}{known.why} (Apache Kafka 4.3.0: {known.kafka})")
        elif result.why:
            lines += [f"{'':22}| {line}" for line in result.why.splitlines()[-6:]]
    lines += [f"! {'absent':8} {'':9}  {name}: {difference.text}" for name, difference in texts.items()]
    return lines


def _teller(name: str) -> Callable[[str], None]:
    return lambda line: print(f"{name}: {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="conformance", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", nargs="*", help=f"of {', '.join(SUITES)}; without one all are run")
    parser.add_argument("--kafka", action="store_true", help="run it against Apache Kafka 4.3.0 instead")
    parser.add_argument("--only", metavar="NAMES", help="only these tests, as the suite itself takes names")
    parser.add_argument("--write", action="store_true", help="write what passed into the list")
    options = parser.parse_args()
    if unknown := [name for name in options.suite if name not in SUITES]:
        parser.error(f"expected a suite of {', '.join(SUITES)}; found {unknown[0]}")
    good, complete = True, True
    for name in options.suite or SUITES:
        try:
            with DirectoryLock(KEPT, f"{name}.lock"):  # a second run would take away what the first one keeps
                good &= run(name, SUITES[name], on_kafka=options.kafka, only=options.only, write=options.write)
        except MainstemError as error:
            print(f"{name}: {error}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)
            complete = False
    return 1 if not good else 0 if complete else 2


if __name__ == "__main__":
    sys.exit(main())
