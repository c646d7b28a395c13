"""What the dashboard shows of a running project, at one moment. Who builds the node fills it in."""

import msgspec


class Node(msgspec.Struct, frozen=True):
    """A source, topic, job, splice, sink or view of the path.

    `kind`: one of these; `id` is `<kind>:<name>`, with the version of a job. `count`: records that it has written, or
    rows that it has got; of a job that does not count what it writes those that it has read; of a topic its end
    offsets, of a view those up to which it has applied its topics; `rate` is what `count` grows by in a second, None
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
    page: str = ""  # of a view: that of the first node that keeps it


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
    previous: bool  # a revert leads to it
    code: str
    determinism: str
    reason: str
    inputs: list[str]
    output: str
    state: str
    why: str
    batch: int | None
    lag: int | None
    rows: int | None
    late: int
    rate: float | None = None


class View(msgspec.Struct, frozen=True):
    """One view of one serving node. `topics`: as the settings name them; `reads`: those that they stand for now.

    `count` is the sum of the offsets up to which it has applied them; `lag` how many there are after those, None where
    it has not said how far it is; `rows` is how many records it has told the audit of. `versions`: of the jobs that it
    answers by; `moving`: those that it builds an index of, and how far that is.
    """

    node: str
    view: str
    kind: str
    topics: list[str]
    reads: list[str] = []
    state: str = ""
    why: str = ""
    count: int = 0
    lag: int | None = None
    rows: int = 0
    versions: dict[str, str] = {}
    moving: str = ""
    rate: float | None = None


class Operation(msgspec.Struct, frozen=True):
    """What somebody has asked for: `state` is running, done, failed or given up; `told` what it waits for, `lines` what
    became of it, `basis` the token of what it wrote. What it `has_result` of is asked for by its `id`.
    """

    id: int
    kind: str
    job: str
    title: str
    state: str
    began_ms: int
    ended_ms: int = 0
    told: str = ""
    lines: list[str] = []
    basis: str = ""
    has_result: bool = False


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
    views: list[View] = []
    disk: str = ""
    problem: str = ""
    audit: AuditResult | None = None
    operations: list[Operation] = []

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)
