"""librdkafka's own tests, unmodified: those of its numbers that need a broker.

The source comes with an npm package and is checked against librdkafka.lock; library and tests are built once by the
machine's gcc and make, and kept in the user's cache directory. Which tests there are, which need a broker and in which
scenario they run is read from the registry in the suite's own test.c.

Each number runs in a process of its own (`test-runner -p1 -E -L`, TESTS=0012), as its tests end the process where they
fail. -E leaves out those that need a socket that loses packets, -L those without a broker. Kafka's shell scripts, which
some call, are made over the jars of tests/support/kafka.lock. What the suite reads from the environment (TEST_DEBUG,
SUBTESTS, ...) can be set as always; LIBRDKAFKA_QUICK=1 is its quick mode (-Q), which leaves much out.
"""

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from conformance.frame import PASSWORD, USER, Outcome, Result, Server, Unavailable
from mainstem.core.errors import CorruptData
from mainstem.process.java import cache_directory
from tests.support import kafka_tools, processes
from tests.support.chromium import npm

LOCK = Path(__file__).with_name("librdkafka.lock")
VERSION = "2.15.1"
INSIDE = "package/deps/librdkafka/"  # of the npm package
KAFKA_VERSION = "4.3.0"  # what the tests take the broker for
SECONDS = 1200.0  # for one number; the longest takes ten minutes, most take a few seconds
REAUTHENTICATION_MS = 10_000  # as the suite's own cluster has it
KEPT_LINES = 12
"""Of what a test printed last: its reason, where it does not pass."""

# fmt: off
SUBSCRIBING = (
    "0018", "0019", "0022", "0026", "0029", "0030", "0033", "0040", "0042", "0045", "0050", "0056",
    "0060", "0064", "0069", "0081", "0082", "0083", "0084", "0089", "0091", "0093", "0102", "0103",
    "0106", "0107", "0109", "0113", "0116", "0118", "0119", "0120", "0122", "0132", "0137",
)
# fmt: on
"""The numbers with consumers that subscribe, those of share groups apart: what the protocol of groups is to."""

_NEEDED = ("gcc", "g++", "make", "python3")
_CONFIGURE = ("--no-download", "--disable-gssapi", "--disable-curl", "--disable-lz4-ext")
_LEFT_OUT = ("TEST_F_LOCAL", "TEST_F_MANUAL", "TEST_F_SOCKEM", "TEST_F_KNOWN_ISSUE")
_ENTRY = re.compile(r"_TEST\((\d{4}\w+),\s*([\w |]+?)\s*[,)](.*?)(?=_TEST\(|\Z)", re.DOTALL)
_SCENARIO = re.compile(r'\.scenario = "([\w,]+)"')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\x1b\(B")
_ENDED = re.compile(r"= Test (\d{4}\w+) (PASSED|FAILED|SKIPPED) =")
_OUTCOMES: Mapping[str, Outcome] = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
_SKIPPED = "WARN: SKIPPING TEST: "
_TOLD = re.compile(r"\[(\d{4}\w+)\s*/\s*([\d.]+)s\] (.*)")
_TOOLS = ("kafka-topics", "kafka-acls", "kafka-configs", "kafka-consumer-groups")


class Entry(msgspec.Struct, frozen=True):
    """One test of the registry."""

    name: str
    flags: tuple[str, ...]
    scenarios: str

    @property
    def number(self) -> str:
        return self.name[:4]

    @property
    def needs_broker(self) -> bool:
        """A broker, and nothing that the suite itself leaves out of a plain run against one.

        Some that need none are not marked so; their names end in `_mock`.
        """
        return not set(self.flags) & set(_LEFT_OUT) and not self.name.endswith("_mock")


def registry(source: str) -> list[Entry]:
    """The tests that test.c lists, in its order."""
    listed = source[source.index("struct test tests[] = {") :]
    listed = listed[: listed.index("{NULL}}")]
    entries = []
    for name, flags, rest in _ENTRY.findall(listed):
        scenario = _SCENARIO.search(rest)
        entries.append(Entry(name, tuple(flags.split(" | ")), scenario[1] if scenario else "default"))
    return entries


# --- fetched and built ---


def locked() -> dict[str, str]:
    """Packages with their versions, and the SHA-256 of their files: the one of npm first."""
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return {package: sha256 for package, _, sha256 in (line.partition(" sha256:") for line in lines)}


def home() -> Path:
    """Where the built source lies; named by the hash of the lock, so that another is never taken for it."""
    mark = hashlib.sha256(" ".join(locked().values()).encode()).hexdigest()[:16]
    return cache_directory() / "conformance" / f"librdkafka-{VERSION}-{mark}"


def build() -> None:
    """Fetch, check and build; all of it appears whole or not at all.

    Raises:
        Unavailable: npm or a compiler is missing, or something could not be had or built.
        CorruptData: another file came than the lock names.
    """
    program = npm()
    missing = [name for name in _NEEDED if shutil.which(name) is None] + ([] if program else ["npm"])
    if missing or program is None:
        raise Unavailable(
            f"expected {', '.join(_NEEDED)} and npm, which fetch and build librdkafka's tests; found no"
            f" {', '.join(missing)} on PATH",
            hint="on Debian: apt install build-essential libssl-dev zlib1g-dev npm",
        )
    home().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="librdkafka-", dir=home().parent) as name:
        work = Path(name)
        (source, source_hash), (headers, headers_hash), (zstd, zstd_hash) = locked().items()
        path = f"{Path(program).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # npm looks for its node there
        _run([program, "pack", "--silent", source], work, PATH=path)
        unpack(checked(work, "*kafka-javascript*.tgz", source_hash), INSIDE, work / "built")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        _run([*pip, "--no-binary", ":all:", "--no-build-isolation", headers, zstd], work)
        unpack(checked(work, "*rapidjson*.tar.gz", headers_hash), "*/rapidjson/include/", work / "built/include")
        unpack(checked(work, "zstd-*.tar.gz", zstd_hash), "*/zstd/lib/", work / "built/zstd")
        _make(work / "built")
        if not home().exists():  # another run may have been faster
            (work / "built").rename(home())


def _make(built: Path) -> None:
    sources = [
        str(path) for part in ("common", "compress", "decompress") for path in (built / "zstd" / part).glob("*.c")
    ]
    shared = ("gcc", "-O2", "-fPIC", "-shared", "-DZSTD_DISABLE_ASM", "-Wl,-soname,libzstd.so.1")
    _run([*shared, "-o", "src/libzstd.so.1", *sources], built)
    (built / "src/libzstd.so").symlink_to("libzstd.so.1")
    flags = {"CPPFLAGS": f"-I{built}/include -I{built}/zstd", "LDFLAGS": f"-L{built}/src"}
    _run(["./configure", *_CONFIGURE], built, LD_LIBRARY_PATH=f"{built}/src", **flags)
    jobs = f"-j{os.cpu_count() or 1}"
    _run(["make", jobs, "libs"], built)
    _run(["make", jobs, "-C", "tests", "build"], built)
    if shutil.which("javac"):  # without one the number that runs a Java producer fails
        kafka = scripts(built / "kafka")
        _run(["make", "-s", "java"], built / "tests", KAFKA_PATH=str(kafka))
        shutil.rmtree(kafka)
    for path in built.rglob("*"):
        if path.suffix in (".o", ".a", ".d") or "-dbg." in path.name:
            path.unlink()


def _run(command: Sequence[str], directory: Path, **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        said = _COLOUR.sub("", done.stdout.decode(errors="replace")).strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"{' '.join(command)}: exit {done.returncode}: {said[-1]}")


def checked(directory: Path, pattern: str, sha256: str) -> Path:
    [archive] = directory.glob(pattern)
    if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != sha256:
        raise CorruptData(f"{archive.name}: expected sha256 {sha256}, found {found}")
    return archive


def unpack(archive: Path, inside: str, target: Path) -> None:
    """What lies below the directory `inside` of a tar file, with its modes; a first part `*` of it may be any."""
    any_first = inside.startswith("*/")
    with tarfile.open(archive) as package:
        for member in package:
            name = member.name.partition("/")[2] if any_first else member.name
            wanted = inside.removeprefix("*/")
            if name.startswith(wanted) and member.isfile():
                package.extract(member.replace(name=name.removeprefix(wanted)), target, filter="data")


def scripts(directory: Path) -> Path:
    """What the suite calls of an installation of Kafka, over the jars of our tests."""
    (directory / "bin").mkdir(parents=True)
    (directory / "libs").mkdir()
    for jar in kafka_tools.classpath().split(":"):
        (directory / "libs" / Path(jar).name).symlink_to(jar)
    commands = {name: [*kafka_tools.command(name)] for name in _TOOLS}
    for name, command in commands.items():
        _script(directory / "bin" / f"{name}.sh", f'{shlex.join(command)} "$@"')
    java = kafka_tools.command("kafka-topics")[0]
    _script(directory / "bin/kafka-run-class.sh", f'{shlex.quote(java)} -cp "$CLASSPATH:{directory}/libs/*" "$@"')
    return directory


def _script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\nexec {command}\n")
    path.chmod(0o755)


# --- run ---


def results(entries: Sequence[Entry], printed: str, ending: str) -> list[Result]:
    """What one number printed, as results of `entries`, which it should have run.

    `ending` says how the process ended where that was not well, and is empty otherwise.
    """
    outcomes: dict[str, Outcome] = {}
    seconds: dict[str, float] = {}
    reasons: dict[str, str] = {}
    complaints = []
    lines = _COLOUR.sub("", printed).splitlines()
    for at, line in enumerate(lines):
        if told := _TOLD.match(line):
            seconds[told[1]] = float(told[2])
            if told[3].startswith(_SKIPPED):
                reasons[told[1]] = told[3].removeprefix(_SKIPPED)
        if ended := _ENDED.search(line):
            outcomes[ended[1]] = _OUTCOMES[ended[2]]
        if line.startswith('### Test "') and '"<MAIN>"' not in line:
            complaints += lines[at : at + 2]
    found = []
    for entry in entries:
        outcome = outcomes.get(entry.name, "failed")  # most end the process where they fail
        why = ""
        if outcome == "skipped":
            why = reasons.get(entry.name, "")
        elif outcome == "failed":
            why = "\n".join([*(complaints or lines[-KEPT_LINES:]), ending]).strip()
        found.append(Result(entry.name, outcome, seconds.get(entry.name, 0.0), why))
    return found


class Librdkafka:
    """The tests of one scenario, or the few that want another way in.

    Args:
        name: of the suite: its list is conformance/<name>.toml.
        scenario: as the registry names it.
        auto_create: whether the broker makes topics that clients ask for, as the scenario has it.
        sasl: whether they log in, with SCRAM.
        numbers: those to run; empty: all.
        protocol: of the groups of consumers that do not choose one.
    """

    restarts = False

    def __init__(
        self,
        name: str,
        scenario: str = "default",
        *,
        auto_create: bool = True,
        sasl: bool = False,
        numbers: Sequence[str] = (),
        protocol: Literal["classic", "consumer"] = "classic",
    ) -> None:
        self.title = f"librdkafka {VERSION}, scenario {scenario}, {'SASL' if sasl else f'{protocol} groups'}"
        self.expected = LOCK.with_name(f"{name}.toml")
        # num_partitions is the scenarios' own. Some tests ask for three replicas, some deny rights, some log in again.
        # Where they start two consumers both have to be in the first assignment: Kafka's default waits 3 s for that.
        # Locks of 3 s are the suite's own, as in its own cluster.
        self.log_settings = (
            "[broker]\n"
            "num_partitions = 4\n"
            "max_replication_factor = 3\n"
            "group_initial_rebalance_delay_ms = 500\n"
            "group_share_min_record_lock_duration_ms = 1_000\n"
            f"auto_create_topics_enable = {str(auto_create).lower()}\n"
            "authorizer_enable = true\n"
            "allow_everyone_if_no_acl_found = true\n"
            'super_users = ["User:admin"]\n'
            f"connections_max_reauth_ms = {REAUTHENTICATION_MS}\n"
        )
        self.kafka_settings: Mapping[str, str] = {
            "num.partitions": "4",
            "group.initial.rebalance.delay.ms": "500",
            "group.share.min.record.lock.duration.ms": "1000",
            "auto.create.topics.enable": str(auto_create).lower(),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:admin",
            "connections.max.reauth.ms": str(REAUTHENTICATION_MS),
        }
        self._scenario = scenario
        self._sasl = sasl
        self._numbers = numbers
        self._protocol = protocol

    def prepare(self) -> None:
        if not home().is_dir():
            build()

    def numbers(self, only: str | None) -> dict[str, list[Entry]]:
        """Number to its tests: all that need a broker, or those whose number `only`, separated by commas, names."""
        wanted = only.split(",") if only is not None else self._numbers
        numbers: dict[str, list[Entry]] = {}
        for entry in registry((home() / "tests/test.c").read_text()):
            if entry.needs_broker and self._scenario in entry.scenarios and (not wanted or entry.number in wanted):
                numbers.setdefault(entry.number, []).append(entry)
        return numbers

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        _keep_old_records(server.bootstrap)
        tests = _tree(work / "tree")
        configuration = work / "test.conf"
        settings = {"bootstrap.servers": server.bootstrap}
        if self._sasl:
            settings = {
                "bootstrap.servers": server.with_scram,
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        # One has 20 s for 15 s of waiting and four runs of Kafka's shell scripts.
        settings["test.timeout.multiplier"] = "2"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        environment = {
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "TEST_CONSUMER_GROUP_PROTOCOL": self._protocol,
            **os.environ,
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "RDKAFKA_TEST_CONF": str(configuration),
            "KAFKA_PATH": str(scripts(work / "kafka")),
            "BROKERS": server.bootstrap,
        }
        command = ["nice", "./test-runner", "-p1", "-E", "-L", "-s", self._scenario]
        if os.environ.get("LIBRDKAFKA_QUICK"):
            command.append("-Q")
        for number, entries in self.numbers(only).items():
            printed = work / f"{number}.txt"
            ending = end_of(command, tests, environment | {"TESTS": number}, printed)
            yield from results(entries, printed.read_text(errors="replace"), ending)


def _keep_old_records(bootstrap: str) -> None:
    """A test writes records of 1970, and reads them a little later: a week's retention may be faster."""
    forever = ConfigEntry("log.retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[forever])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.incremental_alter_configs([broker])[broker].result(timeout=30)


def _tree(tree: Path) -> Path:
    """A directory to run in, that looks like the built source: the tests write where they are."""
    (tree / "tests").mkdir(parents=True)
    for path in home().iterdir():
        if path.name != "tests":
            (tree / path.name).symlink_to(path)
    for path in (home() / "tests").iterdir():
        (tree / "tests" / path.name).symlink_to(path)
    return tree / "tests"


def end_of(command: Sequence[str], directory: Path, environment: Mapping[str, str], printed: Path) -> str:
    """Run it to its end, or for `SECONDS`; how it ended, where not well. Its children go with it."""
    with printed.open("wb") as out:
        process = processes.start(
            command, cwd=directory, env=dict(environment), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return f"did not end in {SECONDS:.0f} s"
        finally:
            _kill_session(process)
    if code == 0:
        return ""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _kill_session(process: "subprocess.Popen[Any]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        processes.stop(process, signal_number=signal.SIGKILL)
