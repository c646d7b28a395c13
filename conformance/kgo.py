"""franz-go's own tests of its client, pkg/kgo, unmodified.

The module comes through the Go proxy and is checked against kgo.lock; the program of its tests is built once and kept
in the user's cache directory. What the tests read from the environment can be set as always (KGO_TEST_RECORDS=10000
makes the long ones short); tests of what a broker does not advertise leave themselves out.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, TextIO

import msgspec

from conformance.frame import PASSWORD, USER, Outcome, Result, Server, Unavailable
from mainstem.core.errors import CorruptData
from mainstem.core.prepared import prepared
from mainstem.process.java import cache_directory
from tests.support import processes

LOCK = Path(__file__).with_name("kgo.lock")
PACKAGE = "pkg/kgo"
PROGRAM = "kgo.test"
TIMEOUT = "60m"  # of Go's own: it then prints what every goroutine does
KEPT_LINES = 20
"""Of what a test printed last: its reason, where it does not pass."""

_ENDED = re.compile(r"--- (PASS|FAIL|SKIP): (.+) \(([\d.]+)s\)")
_TOLD = re.compile(r"\s+\w+\.go:\d+: ")
_OUTCOMES: Mapping[str, Outcome] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


class Downloaded(msgspec.Struct, frozen=True, rename="pascal"):
    """What `go mod download -json` says of a module; others of its fields are not read."""

    dir: str = ""
    sum: str = ""
    error: str = ""


def locked() -> tuple[str, str, str]:
    """Module, version and hash."""
    [line] = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    module, version, checksum = line.split()
    return module, version, checksum


def home() -> Path:
    """Where the source and its tests as one program lie; named by its hash, so that another is never taken for it."""
    _, version, checksum = locked()
    mark = re.sub(r"\W", "", checksum.removeprefix("h1:"))[:16]
    return cache_directory() / "conformance" / f"kgo-{version}-{mark}"


def build() -> None:
    """Fetch, check and build; all of it appears whole or not at all.

    Raises:
        Unavailable: there is no Go, or the module could not be had or built.
        CorruptData: another module came than the lock names.
    """
    module, version, checksum = locked()
    if shutil.which("go") is None:
        raise Unavailable(
            "expected the command go, which builds franz-go's tests; found none on PATH", hint="https://go.dev/dl"
        )
    home().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kgo-", dir=home().parent) as name:
        work = Path(name)
        said = _go(work, "mod", "download", "-json", f"{module}@{version}")
        found = msgspec.json.decode(said, type=prepared(Downloaded))
        if found.error:
            raise Unavailable(f"{module} {version} could not be had: {found.error}")
        if found.sum != checksum:
            raise CorruptData(f"{module} {version}: expected {checksum}, found {found.sum}")
        built = work / "built"  # Go's own copy cannot be written to, nor can a module be built in there
        shutil.copytree(found.dir, built, copy_function=shutil.copyfile)
        for directory in (built, *(path for path in built.rglob("*") if path.is_dir())):
            directory.chmod(0o755)  # copied, too: nobody could remove them
        _go(built, "test", "-c", "-o", str(built / PROGRAM), f"./{PACKAGE}")
        if not home().exists():  # another run may have been faster
            built.rename(home())


def _go(directory: Path, *arguments: str) -> bytes:
    environment = os.environ | {"GOWORK": "off"}
    done = subprocess.run(["go", *arguments], cwd=directory, env=environment, check=False, capture_output=True)
    if done.returncode != 0 and not done.stdout:
        complaint = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"go {' '.join(arguments)}: exit {done.returncode}: {complaint[-1]}")
    return done.stdout


def results(lines: Iterable[str]) -> Iterator[Result]:
    """What the program prints with -test.v=test2json, as results; a test that did not end has failed.

    Go marks its own lines with a byte 0x16, also where a test has left a line unended before.
    """
    running: dict[str, None] = {}
    told: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))  # by t.Log, t.Error and the like
    printed: deque[str] = deque(maxlen=KEPT_LINES)  # by anything else: a client's log, a panic
    current = ""
    for line in lines:
        for part in line.rstrip("\n").split("\x16"):
            if part.startswith("=== "):
                _, what, *name = part.split(maxsplit=2)
                current = name[0].strip() if name else ""
                if what == "RUN":
                    running[current] = None
            elif ended := _ENDED.match(part):
                outcome, test = _OUTCOMES[ended[1]], ended[2]
                running.pop(test, None)
                said = told.pop(test, ())
                yield Result(test, outcome, float(ended[3]), "" if outcome == "passed" else "\n".join(said))
            elif _TOLD.match(part):
                told[current].append(part.strip())
            elif part.strip():
                printed.append(part.strip())
    for test in running:
        yield Result(test, "failed", why="\n".join(["did not end", *told[test], *printed]))


def kept(lines: Iterable[str], out: TextIO) -> Iterator[str]:
    """The lines as they come, each written to `out` first."""
    for line in lines:
        out.write(line)
        yield line


class Kgo:
    """All tests of the package, those that need no broker included."""

    title = f"franz-go {locked()[1]}, pkg/kgo"
    expected = LOCK.with_suffix(".toml")
    log_settings = """
[broker]
group_share_delivery_count_limit = 10
"""
    """As franz-go's own CI has it."""
    kafka_settings: ClassVar[Mapping[str, str]] = {"group.share.delivery.count.limit": "10"}
    restarts = False
    left_out = ""
    environment: ClassVar[Mapping[str, str]] = {"KGO_TEST_RF": "1", "KGO_TEST_UNSAFE": "1"}

    def _addresses(self, server: Server) -> dict[str, str]:
        return {
            "KGO_SEEDS": server.bootstrap,
            "KGO_TEST_SCRAM_SEEDS": server.with_scram,
            "KGO_TEST_SCRAM": f"{USER}:{PASSWORD}",
        }

    def prepare(self) -> None:
        if not home().is_dir():
            build()

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        command = [str(home() / PROGRAM), "-test.v=test2json", f"-test.timeout={TIMEOUT}"]
        if only is not None:
            command.append(f"-test.run={only}")
        if self.left_out:
            command.append(f"-test.skip={self.left_out}")
        with (work / "output.txt").open("w") as out:
            process = processes.start(
                command,
                cwd=home() / PACKAGE,  # a test reads a file of the source
                env={**self.environment, **os.environ, **self._addresses(server)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            assert process.stdout is not None
            try:
                yield from results(kept(process.stdout, out))
            finally:
                processes.stop(process, signal_number=signal.SIGKILL)


class KgoTls(Kgo):
    """All of them over TLS but one, which brings a dialer of its own and so cannot."""

    title = f"{Kgo.title}: over TLS"
    left_out = "^TestIssue769$"
    expected = LOCK.with_name("kgo-tls.toml")

    def _addresses(self, server: Server) -> dict[str, str]:
        over_tls = {"KGO_SEEDS": server.with_tls, "KGO_TEST_TLS": f"ca:{server.authority}"}
        return super()._addresses(server) | over_tls


class KgoChaos(Kgo):
    """The tests that move many records, on connections that break after half a second to one and a half."""

    title = f"{Kgo.title}: connections break"
    expected = LOCK.with_name("kgo-chaos.toml")
    environment: ClassVar[Mapping[str, str]] = {**Kgo.environment, "KGO_TEST_CHAOS": "1"}

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        yield from super().run(server, work, only or "^Test(Group|Share.*)ETL$")


class KgoRestarts(Kgo):
    """The tests that move many records, while the broker is ended and started again on its data every few seconds.

    They see each record once and in order through chains of consumer groups, or fail: what a broker acknowledged and
    forgot, or forgot to forget, is found. Sessions are shorter than the calm between.
    """

    title = f"{Kgo.title}: the broker is killed or stopped"
    expected = LOCK.with_name("kgo-restarts.toml")
    log_settings = f"""{Kgo.log_settings}\
group_consumer_min_session_timeout_ms = 15000
group_consumer_session_timeout_ms = 15000
group_consumer_min_heartbeat_interval_ms = 1000
group_consumer_heartbeat_interval_ms = 1000
group_share_min_session_timeout_ms = 15000
group_share_session_timeout_ms = 15000
group_share_min_heartbeat_interval_ms = 1000
group_share_heartbeat_interval_ms = 1000
"""
    kafka_settings: ClassVar[Mapping[str, str]] = {
        **Kgo.kafka_settings,
        "group.consumer.min.session.timeout.ms": "15000",
        "group.consumer.session.timeout.ms": "15000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "1000",
        "group.share.min.session.timeout.ms": "15000",
        "group.share.session.timeout.ms": "15000",
        "group.share.min.heartbeat.interval.ms": "1000",
        "group.share.heartbeat.interval.ms": "1000",
    }
    restarts = True

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        yield from super().run(server, work, only or "^Test(Group|Share.*|Txn)E(TL|tl)$")
