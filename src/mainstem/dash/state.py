"""What the dashboard shows of a running project, at one moment. Who builds the node fills it in."""

import msgspec


class Node(msgspec.Struct, frozen=True):
    """A source, topic, job or sink of the path.

    `kind`: source, topic, job or sink; `id` is `<kind>:<name>`, with the version of a job. `count`: records that it
    has written, or rows that it has got; of a topic its end offsets; `rate` is what `count` grows by in a second, None
    where that is not known yet. `state` and `error` are what its process says of it, "" where none does.
    """

    id: str
    kind: str
    name: str
    count: int = 0
    rate: float | None = None
    lag: int | None = None
    lag_unit: str = "records"
    position: str = ""
    state: str = ""
    error: str = ""
    detail: str = ""
    audit: str = ""  # the verdict of the last audit, of a topic
    layer: int = 0  # from the left


class Edge(msgspec.Struct, frozen=True):
    """Records go from one node to another; both by id."""

    source: str
    target: str


class Process(msgspec.Struct, frozen=True):
    """A process of the node. `error`: why it does not run."""

    name: str
    state: str
    pid: int | None = None
    restarts: int = 0
    error: str = ""


class JobVersion(msgspec.Struct, frozen=True):
    """One version of a job, as `mainstem job show` has it."""

    job: str
    version: str
    current: bool
    code: str
    determinism: str
    reason: str
    inputs: list[str]
    output: str
    state: str
    why: str
    batch: int | None
    lag: int | None
    rows: int
    late: int
    rate: float | None = None


class AuditResult(msgspec.Struct, frozen=True):
    """The last audit. `wrong`: its lines that are wrong, for people."""

    at_ms: int
    running: bool = False
    seconds: float = 0.0
    counts: dict[str, int] = {}  # verdict to lines
    topics: dict[str, str] = {}  # topic to the worst of its verdicts
    wrong: list[str] = []
    error: str = ""


class State(msgspec.Struct, frozen=True):
    """All of it. `problem`: why there is no more to show, or why it is old."""

    at_ms: int
    project: str = ""
    nodes: list[Node] = []
    edges: list[Edge] = []
    processes: list[Process] = []
    jobs: list[JobVersion] = []
    disk: str = ""
    problem: str = ""
    audit: AuditResult | None = None

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)
