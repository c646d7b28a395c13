"""What every suite shares: the broker that it is run against, what it found of each test, and the list of what it is
expected to find.

A suite is a module with a class that has what `Suite` says, named in `conformance/run.py`, and a list beside it:

    passed = [            # by their names in the suite; `--write` makes this part
      "TestOne",
    ]

    [[otherwise]]         # kept by hand: whatever does not pass, with its reason
    outcome = "skipped"
    kafka = "passed"      # what Apache Kafka 4.3.0 did in the same set-up
    why = "the log has no share groups"
    tests = ["TestShareGroup"]
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from mainstem.core.errors import UserError
from mainstem.core.prepared import prepared
from tests.support import processes
from tests.support.certificates import Authority
from tests.support.kafka_cluster import KafkaCluster
from tests.support.ports import free_port, free_ports

READY_SECONDS = 60.0

USER, PASSWORD = "conformance", "conformance-secret"
"""Of SASL, on a listener of every broker."""

Outcome = Literal["passed", "failed", "skipped"]
T = TypeVar("T")


class Unavailable(UserError):
    """The suite cannot be had on this machine; the message says what is missing."""


class Result(msgspec.Struct, frozen=True):
    """What one test came to; `why` is what it said, for whatever did not pass."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    why: str = ""


# --- what a suite is run against ---


class Server(Protocol):
    """A broker on 127.0.0.1 that can be killed and started again on the same data and port."""

    @property
    def bootstrap(self) -> str:
        """HOST:PORT that clients are given."""
        ...

    @property
    def port(self) -> int:
        """Where it listens itself."""
        ...

    @property
    def with_scram(self) -> str:
        """HOST:PORT of a listener where `USER` is known by SCRAM-SHA-256, without TLS."""
        ...

    @property
    def with_tls(self) -> str:
        """HOST:PORT of a listener with TLS."""
        ...

    @property
    def authority(self) -> Path:
        """The certificate that vouches for it."""
        ...

    @property
    def data(self) -> Path:
        """Its files: a directory for each partition."""
        ...

    @property
    def said(self) -> Path:
        """The file with what it writes about itself, over all its starts."""
        ...

    def start(self) -> None:
        """Return when it answers."""

    def kill(self) -> None:
        """SIGKILL: as a crash of the process."""

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""

    def close(self) -> None:
        """End it; the data is not needed any more."""


class LogServer:
    """`mainstem log start` on a free port, its data below `directory`.

    Args:
        settings: the content of its mainstem.toml.
        advertised: the port that clients are told, where that is not its own.
    """

    def __init__(self, directory: Path, settings: str = "", advertised: int | None = None) -> None:
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{advertised or self.port}"
        scram_port, tls_port = free_ports(2)
        self.with_scram, self.with_tls = f"127.0.0.1:{scram_port}", f"127.0.0.1:{tls_port}"
        signer = Authority(directory)
        self.authority = signer.file
        certificate, key = signer.issue("log")
        self.said = directory / "broker.log"
        self._settings = directory / "mainstem.toml"
        listeners = [
            f'[broker.listeners.scram]\nport = {scram_port}\nprotocol = "SASL_PLAINTEXT"',
            f'[broker.listeners.tls]\nport = {tls_port}\nprotocol = "SSL"',
            f'certificate_file = "{certificate}"\nkey_file = "{key}"',
            f'[broker.users]\n{USER} = "{PASSWORD}"',
        ]
        self._settings.write_text("\n".join([settings, *listeners, ""]))
        self.data = directory / "data"
        self._environment = {"MAINSTEM_BROKER__ADVERTISED_PORT": str(advertised)} if advertised else {}
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mainstem", "log", "start", "--data", str(self.data)]
        command += ["--listen", f"127.0.0.1:{self.port}", "--config", str(self._settings)]
        with self.said.open("ab") as out:
            where = out.tell()
            environment = os.environ | self._environment
            self._process = processes.start(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        until = time.monotonic() + READY_SECONDS
        while b"\nlistening on " not in b"\n" + self.said.read_bytes()[where:]:
            if self._process.poll() is not None or time.monotonic() > until:
                tail = self.said.read_text(errors="replace").splitlines()[-20:]
                raise AssertionError("\n".join([f"the log did not start within {READY_SECONDS:.0f} s:", *tail]))
            time.sleep(0.01)

    def kill(self) -> None:
        assert self._process is not None
        processes.stop(self._process, signal_number=signal.SIGKILL)

    def stop(self) -> None:
        assert self._process is not None
        processes.stop(self._process)

    close = kill


class KafkaServer:
    """One broker of Apache Kafka 4.3.0; `advertised` as for the log."""

    def __init__(self, directory: Path, settings: Mapping[str, str], advertised: int | None = None) -> None:
        scram_port, tls_port, controller_port = free_ports(3)
        self.with_scram, self.with_tls = f"127.0.0.1:{scram_port}", f"127.0.0.1:{tls_port}"
        signer = Authority(directory)
        self.authority = signer.file
        key_store = directory / "both.pem"
        certificate, key = signer.issue("kafka")
        key_store.write_text(key.read_text() + certificate.read_text())
        self._cluster = KafkaCluster(1, directory, heap_mb=1024, overrides=settings)
        self.port = self._cluster.ports[1]
        self.bootstrap = f"127.0.0.1:{advertised or self.port}"
        self.said, self.data = self._cluster.log(1), self._cluster.data(1)
        further = f"SCRAM://{self.with_scram},TLS://{self.with_tls}"
        self._cluster.overrides |= {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},{further},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},{further}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SCRAM:SASL_PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.scram.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram."
            "ScramLoginModule required;",
            "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": str(key_store),
        }

    def start(self) -> None:
        if self.said.exists():
            self._cluster.start(1)
        else:
            self._cluster.__enter__()
            kind, admin = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), self._cluster.admin()
            made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, kind, PASSWORD.encode())])
            made[USER].result(timeout=30)

    def kill(self) -> None:
        self._cluster.kill(1)

    def stop(self) -> None:
        self._cluster.stop(1)

    def close(self) -> None:
        self._cluster.close()


class Restarts:
    """While the context lasts, `server` is ended after every few seconds that it ran, and started again.

    Two times of three it is killed, otherwise told to stop. After two times it is left alone for longer than a
    session lasts: a member whose last word was lost holds its group up until then, and a start begins that anew; and
    franz-go gives up a request to join that three ends within a session have met.

    `count`: how often it was; `failure`: what kept it from starting, with the end of what it wrote.
    """

    def __init__(
        self, server: Server, *, seconds: tuple[float, float] = (1.5, 5.0), times: int = 2, calm: float = 25.0
    ) -> None:
        self.count = 0
        self.failure: str | None = None
        self._server = server
        self._seconds = seconds
        self._times = times
        self._calm = calm
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="restarts", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            if random.random() < 2 / 3:
                self._server.kill()
            else:
                self._server.stop()
            try:
                self._server.start()
            except AssertionError as error:
                self.failure = str(error)
                return
            self.count += 1

    def _pause(self) -> float:
        if self.count and self.count % self._times == 0:
            return self._calm
        return random.uniform(*self._seconds)

    def __enter__(self) -> "Restarts":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()


# --- what a suite is ---


class Suite(Protocol):
    """Somebody else's tests, unmodified."""

    @property
    def title(self) -> str:
        """What it is, with its version: for the line that opens a run."""
        ...

    @property
    def expected(self) -> Path:
        """Its list."""
        ...

    @property
    def log_settings(self) -> str:
        """The mainstem.toml that it wants, mostly empty: users have the defaults."""
        ...

    @property
    def kafka_settings(self) -> Mapping[str, str]:
        """What differs from the brokers of the tests, so that both are set up alike."""
        ...

    @property
    def restarts(self) -> bool:
        """Whether the broker is killed and started again every few seconds, behind a door that stays open."""
        ...

    def prepare(self) -> None:
        """Fetch and build what is not in the user's cache directory.

        Raises:
            Unavailable: it cannot be had here.
        """

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        """Run it against `server`, which runs, and give each test as it ends, the parts of a test before it.

        What the suite prints and makes goes to the directory `work`. `only`: names of tests, as the suite itself takes
        them; None is all of them.
        """
        ...


def run_each(
    tests: Iterable[Callable[[T], None]], given: Callable[[str], AbstractContextManager[T]], only: str | None
) -> Iterator[Result]:
    """Run `tests`, functions that raise where something is not as their name says.

    `given` makes what a test is called with, from its name, for as long as it runs. `only`: names,
    separated by commas; None is all.
    """
    wanted = None if only is None else only.split(",")
    for test in tests:
        if wanted is not None and test.__name__ not in wanted:
            continue
        began = time.monotonic()
        try:
            with given(test.__name__) as subject:
                test(subject)
        except Exception as error:
            said = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            yield Result(test.__name__, "failed", time.monotonic() - began, said)
        else:
            yield Result(test.__name__, "passed", time.monotonic() - began)


# --- what is expected of it ---


class Otherwise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tests that do not pass, and why."""

    outcome: Literal["failed", "skipped"]
    kafka: Outcome
    why: str
    tests: tuple[str, ...]


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The list of a suite."""

    passed: tuple[str, ...] = ()
    otherwise: tuple[Otherwise, ...] = ()

    def of(self, name: str) -> Otherwise | None:
        return next((each for each in self.otherwise if name in each.tests), None)


def read_expected(path: Path) -> Expected:
    """The list at `path`; where there is no file nothing is expected.

    Raises:
        UserError: it is not what a list is, or names a test twice.
    """
    try:
        expected = msgspec.convert(tomllib.loads(path.read_text()), prepared(Expected))
    except FileNotFoundError:
        return Expected()
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: {error}", hint="conformance/frame.py says what a list holds") from error
    names = [*expected.passed, *(name for each in expected.otherwise for name in each.tests)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}: expected each test once, found {', '.join(twice)} again")
    return expected


def write_expected(path: Path, results: Iterable[Result]) -> None:
    """Put what passed into the list at `path`; what else stands in it is kept as it is, for a person to edit."""
    names = sorted({result.name for result in results if result.outcome == "passed"})
    # A string of JSON is one of TOML, but for surrogates, and for the one control character that JSON leaves as it is.
    lines = "".join(f"  {json.dumps(name, ensure_ascii=False)},\n".replace("\x7f", "\\u007f") for name in names)
    text = path.read_text() if path.exists() else "passed = [\n]\n"
    path.write_text(
        re.sub(
            r"^passed = \[\n.*?^\]\n",
            lambda _: f"passed = [\n{lines}]\n",
            text,
            count=1,
            flags=re.MULTILINE | re.DOTALL,
        )
    )


class Difference(msgspec.Struct, frozen=True):
    """Where a run is not as the list says."""

    name: str
    text: str
    is_worse: bool  # a run with one of these has failed


def differences(expected: Expected, results: Sequence[Result], *, whole: bool) -> list[Difference]:
    """What is not as the list says, in the order of the run; `whole`: tests of the list that were not run count.

    A test that passes and that the list does not name is none.
    """
    found = []
    passed = set(expected.passed)
    for result in results:
        known = expected.of(result.name)
        if result.outcome == "passed":
            if known is not None:
                found.append(Difference(result.name, f"passes; the list says {known.outcome}", is_worse=False))
        elif known is None:
            listed = "passed" if result.name in passed else "nothing of it"
            found.append(Difference(result.name, f"{result.outcome}; the list says {listed}", is_worse=True))
        elif known.outcome != result.outcome:
            # A failure that became a skip is no step back: the suite left out what it could not do.
            worse = result.outcome == "failed"
            found.append(Difference(result.name, f"{result.outcome}; the list says {known.outcome}", is_worse=worse))
    if whole:
        there = {result.name for result in results}
        names = [*expected.passed, *(name for each in expected.otherwise for name in each.tests)]
        found += [
            Difference(name, "was not run; the list names it", is_worse=True) for name in names if name not in there
        ]
    return found
