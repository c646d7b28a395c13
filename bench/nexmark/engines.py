"""How each engine is started on a query, what it guarantees, and which queries it does not have."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from bench.nexmark.fill import PROJECT, TOPICS
from bench.nexmark.oracle import QUERIES
from bench.nexmark.rivals.common import COMMIT_SECONDS
from mainstem.client.internal import job_group
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
RIVALS = Path(os.environ.get("NEXMARK_RIVALS") or ROOT / ".venv" / "rivals")
"""Where `make bench-jobs` puts an environment for each."""


class Run(msgspec.Struct, frozen=True):
    """One engine on one query: its processes, and what is known of them from outside.

    Attributes:
        commands: one for each process.
        environment: what is added to that of the processes.
        output: the topic that it writes.
        group: the consumer group that says how far it is; empty: none does.
        inputs: the topics that it reads.
        state: its directory.
        ends: whether it ends by itself at the end of its input.
        replaced: whether only its last row for each key counts.
    """

    commands: tuple[Sequence[str], ...]
    output: str
    inputs: tuple[str, ...]
    state: Path
    environment: Mapping[str, str] = {}
    group: str = ""
    ends: bool = False
    replaced: bool = False


class Engine(Protocol):
    """What is measured.

    Attributes:
        name: as the table has it.
        guarantee: what it promises of its output.
        lacks: queries that it does not have, each with the reason.
        encoding: of the topics that it reads and writes.
    """

    name: str
    guarantee: str
    lacks: Mapping[str, str]
    encoding: str

    @property
    def is_there(self) -> bool:
        """Whether it is installed."""

    def run(
        self,
        query: str,
        number: str,
        bootstrap: str,
        state: Path,
        *,
        tail: bool = False,
        commits: float = COMMIT_SECONDS,
    ) -> Run:
        """What is to be started. With `tail` it waits for more at the end; it commits each `commits` seconds."""

    def first_record(self, run: Run) -> float | None:
        """When it had its first record in hand, in seconds since 1970; None: not yet."""


class Mainstem:
    """`mainstem up` on the project: gateway and Spark driver, all of which is measured.

    Args:
        settings: of the environment, as `MAINSTEM_JOBS__Q5__EVERY`.
    """

    guarantee = "exactly once"
    lacks: Mapping[str, str] = {}
    encoding = "avro"
    is_there = True

    def __init__(self, name: str = "mainstem", settings: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._settings = settings or {}

    def run(
        self,
        query: str,
        number: str,
        bootstrap: str,
        state: Path,
        *,
        tail: bool = False,
        commits: float = COMMIT_SECONDS,
    ) -> Run:
        gateway = f"127.0.0.1:{free_port()}"
        command = [str(Path(sys.executable).with_name("mainstem")), "up", str(PROJECT), "--data", str(state / "data")]
        job = f"MAINSTEM_JOBS__{query.upper()}__"
        environment = {"MAINSTEM_PROJECT__JOBS": f"{query}.py", f"{job}VERSION": number}
        environment[f"{job}EVERY"] = f"{commits * 1000:.0f} milliseconds"
        environment |= {key.replace("JOB__", job): value for key, value in self._settings.items()}
        return Run(
            commands=([*command, "--bootstrap", bootstrap, "--gateway", gateway],),
            output=f"nexmark.{query}.v{number}",
            inputs=inputs_of(query, "avro"),
            state=state,
            environment=environment,
            group=job_group(query, number),
            replaced=query == "q18",
        )

    def first_record(self, run: Run) -> float | None:
        """The planning of its first batch began: it asks the log for its offsets, and fetches thereafter."""
        for plan in run.state.glob("data/jobs/*/checkpoint/offsets/0"):
            lines = plan.read_text().splitlines()
            return float(msgspec.json.decode(lines[1])["batchTimestampMs"]) / 1000
        return None


class Rival:
    """A program of `bench.nexmark.rivals` in an environment of its own.

    Args:
        name: as the table has it.
        module: of `bench.nexmark.rivals`, and name of its environment.
        processes: how many.
        lacks: queries that it does not have, each with the reason.
        replaced: queries whose rows replace each other.
        group: whether a consumer group says how far it is.
        exactly_once: whether it is told to be so.
        ends: whether it ends by itself at the end of its input.
    """

    encoding = "json"

    def __init__(
        self,
        name: str,
        module: str,
        *,
        processes: int = 2,
        lacks: Mapping[str, str] | None = None,
        replaced: Sequence[str] = ("q18",),
        group: bool = True,
        exactly_once: bool = False,
        ends: bool = False,
    ) -> None:
        self.name, self.lacks = name, lacks or {}
        self.guarantee = "exactly once" if exactly_once else "at least once"
        self._module, self._processes, self._replaced = module, processes, replaced
        self._group, self._exactly_once, self._ends = group, exactly_once, ends

    def run(
        self,
        query: str,
        number: str,
        bootstrap: str,
        state: Path,
        *,
        tail: bool = False,
        commits: float = COMMIT_SECONDS,
    ) -> Run:
        output = f"nexmark.{query}.{self.name}.{number}".replace(" ", "-")
        python = str(RIVALS / self._module / "bin" / "python")
        command = [python, "-m", f"bench.nexmark.rivals.{self._module}", query]
        command += ["--bootstrap", bootstrap, "--output", output, "--state", str(state)]
        command += ["--commit-seconds", str(commits)]
        command += ["--exactly-once"] if self._exactly_once else []
        command += ["--tail"] if tail else []
        addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(self._processes))
        each = [[*command, "--process", str(n), "--addresses", addresses] for n in range(self._processes)]
        return Run(
            commands=tuple(each),
            output=output,
            inputs=inputs_of(query, "json"),
            state=state,
            environment={"PYTHONPATH": str(ROOT)},
            group=output if self._group else "",
            ends=self._ends and not tail,
            replaced=query in self._replaced,
        )

    @property
    def is_there(self) -> bool:
        return (RIVALS / self._module / "bin" / "python").exists()

    def first_record(self, run: Run) -> float | None:
        found = [float(text) for path in run.state.glob("first-*") if (text := path.read_text())]
        return min(found, default=None)


def inputs_of(query: str, encoding: str) -> tuple[str, ...]:
    """The topics that a query reads."""
    person, auction, bid, *by_bidder = TOPICS[encoding]
    if query == "q8":
        return person, auction
    return (by_bidder[0] if by_bidder and query in ("q11", "q18") else bid,)


ENGINES: dict[str, Engine] = {
    "mainstem": Mainstem(),
    "quix": Rival("quix", "quix"),
    "quix-eo": Rival("quix-eo", "quix", exactly_once=True),
    "faust": Rival("faust", "faust", lacks={"q8": "it has no joins"}, replaced=("q5", "q18")),
    "bytewax": Rival("bytewax", "bytewax", group=False, ends=True),
    "pathway": Rival("pathway", "pathway", processes=1, group=False, replaced=()),
}
"""By the name that `--engines` takes."""

assert all(set(engine.lacks) <= set(QUERIES) for engine in ENGINES.values())
