"""kcat, the command line over librdkafka, as people use it: what it prints of our log, and what it brings into it.

kcat has no suite of its own that runs without a cluster around it, so these are a few commands each, and what Apache
Kafka 4.3.0 answers to them. It comes with Debian's packages of kcat.lock, kept in the user's cache directory; where
there is no apt-get that has them, the machine's own kcat is taken.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TextIO

from conformance.frame import Result, Server, Unavailable, run_each
from mainstem.core.errors import CorruptData
from mainstem.process.java import cache_directory
from tests.support import processes

LOCK = Path(__file__).with_name("kcat.lock")
SECONDS = 60.0
"""For one command; the slowest wait for a group."""


def locked() -> dict[str, str]:
    """Packages with their versions, and the SHA-256 of their files; kcat's is the first."""
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return {package: sha256 for package, _, sha256 in (line.partition(" sha256:") for line in lines)}


def home() -> Path:
    """Where the unpacked packages lie; named by the hash of the lock, so that another is never taken for it."""
    mark = hashlib.sha256(" ".join(locked().values()).encode()).hexdigest()[:16]
    return cache_directory() / "conformance" / f"kcat-{mark}"


def fetch() -> None:
    """Fetch, check and unpack the packages; all of it appears whole or not at all.

    Raises:
        Unavailable: there is no apt-get, or none that has them.
        CorruptData: another file came than the lock names.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("expected kcat on PATH, or apt-get to fetch it with; found neither")
    home().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kcat-", dir=home().parent) as name:
        work = Path(name)
        for package, sha256 in locked().items():
            done = subprocess.run(
                ["apt-get", "download", "--quiet", package], cwd=work, check=False, capture_output=True, text=True
            )
            archives = list(work.glob(f"{package.partition('=')[0]}_*.deb"))
            if not archives:
                said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                raise Unavailable(f"apt-get download {package}: {said}", hint="apt install kcat")
            if (found := hashlib.sha256(archives[0].read_bytes()).hexdigest()) != sha256:
                raise CorruptData(f"{package}: expected sha256 {sha256}, found {found}")
            subprocess.run(["dpkg-deb", "--extract", archives[0], work / "unpacked"], check=True)
        if not home().exists():  # another run may have been faster
            (work / "unpacked").rename(home())


@cache
def program() -> tuple[Path, Mapping[str, str]]:
    """The program, and what it needs in its environment."""
    fetched = home() / "usr/bin/kcat"
    if not fetched.exists():
        found = shutil.which("kcat") or shutil.which("kafkacat")
        if found is None:
            raise Unavailable("expected kcat on PATH, found none", hint="apt install kcat")
        return Path(found), os.environ
    libraries = {str(path.parent) for path in (home() / "usr/lib").rglob("*.so*")}
    return fetched, os.environ | {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}


class Client:
    """kcat at one broker, and names of one test's own."""

    def __init__(self, bootstrap: str, out: Path) -> None:
        self._bootstrap = bootstrap
        self._out = out
        self.topic = f"kcat-{uuid.uuid4().hex[:12]}"

    def start(
        self, *arguments: str, stdin: Any = subprocess.DEVNULL, stderr: Any = subprocess.PIPE
    ) -> "subprocess.Popen[str]":
        executable, environment = program()
        return processes.start(
            [str(executable), "-b", self._bootstrap, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=dict(environment),
        )

    def end(self, process: "subprocess.Popen[str]", stdin: str | None = None) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        try:
            out, err = process.communicate(stdin, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err = f"{err or ''}\ndid not end in {SECONDS:.0f} s"
        with self._out.open("a") as kept:
            kept.write(f"$ {process.args!r}\n{out}{err or ''}\nexit {process.returncode}\n")
        return process.returncode, out, err or ""

    def run(self, *arguments: str, stdin: str = "") -> str:
        """Its stdout; it has to end well."""
        code, out, err = self.end(self.start(*arguments, stdin=subprocess.PIPE), stdin)
        assert code == 0, f"kcat {' '.join(arguments)}: exit {code}: {err.strip()}"
        return out

    def produce(self, text: str, *arguments: str, partition: int = 0) -> None:
        """One record for each line."""
        self.run("-P", "-t", self.topic, "-p", str(partition), *arguments, stdin=text)

    def consume(self, *arguments: str) -> list[str]:
        """The lines of all records from there on."""
        return self.run("-C", "-q", "-e", "-t", self.topic, *arguments).splitlines()


# --- the tests: what a name says ---


def lists_brokers_and_topics(kcat: Client) -> None:
    kcat.produce("one\n")
    listed = json.loads(kcat.run("-L", "-J", "-t", kcat.topic))
    [broker] = listed["brokers"]
    assert listed["controllerid"] == broker["id"], listed
    [topic] = listed["topics"]
    assert [each["partition"] for each in topic["partitions"]] == [0, 1, 2, 3], topic
    assert all(each["leader"] == broker["id"] for each in topic["partitions"]), topic
    assert all(each["isrs"] == [{"id": broker["id"]}] for each in topic["partitions"]), topic
    everything = json.loads(kcat.run("-L", "-J"))
    assert kcat.topic in [each["topic"] for each in everything["topics"]], everything


def is_told_of_a_topic_that_is_not_there(kcat: Client) -> None:
    listed = kcat.run("-L", "-t", kcat.topic, "-X", "allow.auto.create.topics=false")
    assert "Unknown topic or partition" in listed, listed
    assert kcat.topic not in kcat.run("-L"), "the question has made the topic"


def brings_keys_values_and_headers_with_every_compression(kcat: Client) -> None:
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        value = codec * 500
        kcat.produce(f"k{number}:{value}\n", "-K:", "-H", f"codec={codec}", "-z", codec)
        [line] = kcat.consume("-p", "0", "-o", str(number), "-f", "%o %k %h %s\\n")
        assert line == f"{number} k{number} codec={codec} {value}", line


def brings_nulls_and_empty_values(kcat: Client) -> None:
    kcat.produce("k:\n:v\n", "-K:", "-Z")
    kcat.produce("k:\n", "-K:")
    lengths = kcat.consume("-p", "0", "-o", "beginning", "-f", "%K %S\\n")
    assert lengths == ["1 -1", "-1 1", "1 0"], lengths


def tells_a_record_as_json(kcat: Client) -> None:
    before = int(time.time() * 1000)
    kcat.produce("k:v\n", "-K:", "-H", "a=1")
    told = json.loads(kcat.consume("-p", "0", "-o", "beginning", "-J")[0])
    assert before <= told.pop("ts") <= time.time() * 1000, told
    told.pop("broker", None)
    assert told == {
        "topic": kcat.topic,
        "partition": 0,
        "offset": 0,
        "tstype": "create",
        "headers": ["a", "1"],
        "key": "k",
        "payload": "v",
    }, told


def writes_idempotently_and_without_acknowledgement(kcat: Client) -> None:
    lines = [str(number) for number in range(5000)]
    text = "\n".join(lines) + "\n"
    kcat.produce(text, "-X", "enable.idempotence=true")
    assert kcat.consume("-p", "0", "-o", "beginning") == lines
    kcat.produce(text, "-X", "acks=0", partition=1)
    assert kcat.consume("-p", "1", "-o", "beginning") == lines


def finds_offsets_by_number_from_the_end_and_by_time(kcat: Client) -> None:
    moments = []
    for number in range(3):
        moments.append(int(time.time() * 1000))
        kcat.produce(f"{number}\n")
        time.sleep(0.05)

    def asked(timestamp: int) -> str:
        return kcat.run("-Q", "-t", f"{kcat.topic}:0:{timestamp}").split()[-1]

    assert [asked(each) for each in (-2, 0, *moments, -1)] == ["0", "0", "0", "1", "2", "3"]
    assert asked(moments[-1] + 3_600_000) == "-1"
    assert kcat.consume("-p", "0", "-o", "1") == ["1", "2"]
    assert kcat.consume("-p", "0", "-o", "-1") == ["2"]
    assert kcat.consume("-p", "0", "-o", f"s@{moments[1]}", "-o", f"e@{moments[2]}") == ["1"]
    assert kcat.consume("-p", "0", "-o", "beginning", "-c", "2") == ["0", "1"]


def goes_on_in_a_group_where_it_stopped(kcat: Client) -> None:
    group = ["-G", kcat.topic, "-q", "-e", "-X", "auto.offset.reset=earliest"]
    for number in range(4):
        kcat.produce(f"first-{number}\n", partition=number)
    first = sorted(kcat.run(*group, kcat.topic).splitlines())
    assert first == [f"first-{number}" for number in range(4)], first
    kcat.produce("second\n", partition=2)
    again = kcat.run(*group, kcat.topic).splitlines()
    assert again == ["second"], again


def shares_the_partitions_of_a_topic_in_a_group(kcat: Client) -> None:
    kcat.produce("to make the topic\n")
    group = ["-G", kcat.topic, "-X", "heartbeat.interval.ms=500", kcat.topic]
    with tempfile.TemporaryFile("w+") as one, tempfile.TemporaryFile("w+") as other:
        members = [kcat.start(*group, stderr=said) for said in (one, other)]
        until = time.monotonic() + SECONDS
        while True:
            shares = [assigned(one), assigned(other)]
            if [len(each) for each in shares] == [2, 2]:
                break
            assert time.monotonic() < until, f"after {SECONDS:.0f} s: {shares}"
            time.sleep(0.05)
        for member in members:
            member.send_signal(signal.SIGINT)
        codes = [kcat.end(member)[0] for member in members]
    assert shares[0] | shares[1] == {"0", "1", "2", "3"}, shares
    assert codes == [0, 0], codes


def assigned(said: TextIO) -> set[str]:
    """The partitions that a member has got last."""
    said.seek(0)
    lines = [line for line in said if "rebalanced" in line]
    return set(re.findall(r" \[(\d+)\]", lines[-1])) if lines else set()


def reads_committed_transactions_only_and_the_next_producer_ends_one_that_was_left(kcat: Client) -> None:
    transactional = ["-X", f"transactional.id={kcat.topic}"]
    kcat.produce("committed\n", *transactional)
    left = kcat.start("-P", "-t", kcat.topic, "-p", "0", *transactional, stdin=subprocess.PIPE)
    assert left.stdin is not None
    left.stdin.write("left\n" * 5000)  # it reads a kilobyte at a time
    left.stdin.flush()
    everything = ["-p", "0", "-o", "beginning", "-X", "isolation.level=read_uncommitted"]
    committed = ["-p", "0", "-o", "beginning", "-X", "isolation.level=read_committed"]
    until = time.monotonic() + SECONDS
    while "left" not in kcat.consume(*everything):
        assert time.monotonic() < until, "nothing of the open transaction came"
    assert kcat.consume(*committed) == ["committed"]
    left.kill()
    kcat.end(left)
    kcat.produce("next\n", *transactional)
    assert kcat.consume(*committed) == ["committed", "next"]
    assert kcat.consume(*everything)[:2] == ["committed", "left"]


def is_refused_a_record_that_is_too_large(kcat: Client) -> None:
    kcat.produce("small\n")
    large = "x" * 2_000_000
    arguments = ["-P", "-t", kcat.topic, "-p", "0", "-X", "message.max.bytes=3000000"]
    code, _, err = kcat.end(kcat.start(*arguments, stdin=subprocess.PIPE), large)
    assert code != 0, "a record of 2,000,000 bytes was taken"
    assert "Message size too large" in err, err
    assert kcat.consume("-p", "0", "-o", "beginning") == ["small"]


def is_told_of_an_offset_that_is_not_there(kcat: Client) -> None:
    kcat.produce("one\n")
    arguments = ["-C", "-q", "-e", "-t", kcat.topic, "-p", "0", "-o", "7", "-X", "topic.auto.offset.reset=error"]
    code, _, err = kcat.end(kcat.start(*arguments))
    assert code != 0, "it read from offset 7 of 1"
    assert "out of range" in err.lower(), err


TESTS: tuple[Callable[[Client], None], ...] = (
    lists_brokers_and_topics,
    is_told_of_a_topic_that_is_not_there,
    brings_keys_values_and_headers_with_every_compression,
    brings_nulls_and_empty_values,
    tells_a_record_as_json,
    writes_idempotently_and_without_acknowledgement,
    finds_offsets_by_number_from_the_end_and_by_time,
    goes_on_in_a_group_where_it_stopped,
    shares_the_partitions_of_a_topic_in_a_group,
    reads_committed_transactions_only_and_the_next_producer_ends_one_that_was_left,
    is_refused_a_record_that_is_too_large,
    is_told_of_an_offset_that_is_not_there,
)


class Kcat:
    """All of `TESTS`."""

    expected = LOCK.with_suffix(".toml")
    log_settings = "[broker]\nnum_partitions = 4\n"
    kafka_settings: ClassVar[Mapping[str, str]] = {"num.partitions": "4"}
    restarts = False

    @property
    def title(self) -> str:
        executable, environment = program()
        said = subprocess.run([executable, "-V"], check=True, capture_output=True, text=True, env=dict(environment))
        found = re.search(r"Version ([\d.]+) \(.*?(librdkafka [\d.]+)", said.stdout)
        return f"kcat {found[1]} over {found[2]}" if found else "kcat"

    def prepare(self) -> None:
        if home().is_dir():
            return
        try:
            fetch()
        except Unavailable:
            program()  # the machine's own will do

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        yield from run_each(TESTS, lambda name: nullcontext(Client(server.bootstrap, work / f"{name}.txt")), only)
