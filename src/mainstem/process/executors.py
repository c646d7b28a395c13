"""Whether the executors of a cluster have what jobs need on their hosts, asked of them before the first job starts:

    Python       with the same mainstem
    files        at the same path: the data directory and those of tables, to be written to; what [security] names
    the log      each of its brokers, at the address that it gives
    the driver   its claims

Where one of them is missing each batch would fail in its middle, with errors that say little. Where Spark runs within
this process nothing is asked.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.client.connection import Connection
from mainstem.client.topics import brokers
from mainstem.core import Retriable, UserError
from mainstem.core.address import format_address
from mainstem.core.causes import one_line
from mainstem.process.session import driver_place, has_ended, is_local
from mainstem.process.sink_claims import ClaimsServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 120.0
_REACH_SECONDS = 10.0
_GROUP = "mainstem-executors"
_PYTHON_HINT = (
    "[spark.settings] \"spark.pyspark.python\" is the path of the executors' Python: of the driver's version, with the same "
    "mainstem[spark] and what the project imports"
)


class NoExecutor(Retriable):
    """The cluster has given the application no executor so far."""


class ExecutorUnfit(UserError):
    """An executor lacks something that jobs need where it runs."""


def check_executors(
    spark: "SparkSession", connection: Connection, places: Sequence[Path], *, wait_seconds: float = WAIT_SECONDS
) -> None:
    """See that the executors that are there can run the jobs.

    Args:
        spark: the root session.
        connection: the log.
        places: directories that both write to; they are made.
        wait_seconds: for the first executor.

    Raises:
        ExecutorUnfit: one lacks what the message says; the hint says what to set.
        NoExecutor: there is none.
        BrokerUnavailable: the log does not answer here.
    """
    context = spark.sparkContext
    if is_local(str(context.master)):
        return
    host, bind, port = driver_place(spark)
    security = connection.security
    files = [*filter(None, (security.ca_file, security.certificate_file, security.key_file))]
    with ExitStack() as ends:
        claims = ClaimsServer(host, bind=bind, port=port)
        ends.callback(claims.close)
        addresses = {f"the log at {format_address(*each)}": each for each in brokers(connection)}
        look = _look(
            {str(place): ends.enter_context(_probe(place)) for place in places},
            files,
            {**addresses, "the driver": (host, claims.address.port)},
        )
        found = _ask(spark, look, 1, wait_seconds)
        found += _ask(spark, look, context.defaultParallelism, wait_seconds)  # those that have come meanwhile
    for each in found:
        _check(each)


@contextmanager
def _probe(place: Path) -> Iterator[str]:
    """A new directory in one: whoever has another one at its path does not have this."""
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".executors-", dir=place.absolute()) as made:
        yield made


def _look(
    probes: dict[str, str], files: list[str], addresses: dict[str, tuple[str, int]]
) -> Callable[[Iterator[Any]], Iterator[dict[str, Any]]]:
    """What a worker does. A function within one is sent as code: mainstem may not be there."""
    reach_seconds = _REACH_SECONDS

    def look(_: Iterator[Any]) -> Iterator[dict[str, Any]]:
        import contextlib
        import importlib.metadata
        import socket
        import sys
        import uuid
        from pathlib import Path

        found = {"host": socket.gethostname(), "python": sys.executable, "mainstem": "none"}
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found["mainstem"] = importlib.metadata.version("mainstem")
        unusable, unreached = {}, {}
        for place, probe in probes.items():
            try:
                (Path(probe) / uuid.uuid4().hex).touch()
            except OSError as error:
                unusable[place] = error.strerror or str(error)
        for file in files:
            try:
                Path(file).read_bytes()
            except OSError as error:
                unusable[file] = error.strerror or str(error)
        for name, address in addresses.items():
            try:
                socket.create_connection(address, reach_seconds).close()
            except OSError as error:
                unreached[name] = error.strerror or str(error)
        yield {**found, "unusable": unusable, "unreached": unreached}

    return look


def _ask(
    spark: "SparkSession", look: Callable[[Iterator[Any]], Iterator[Any]], tasks: int, seconds: float
) -> list[dict[str, Any]]:
    """What so many tasks say, dealt out over the executors."""
    late = threading.Event()
    context: Any = spark.sparkContext
    host, _, _ = driver_place(spark)

    def give_up() -> None:
        late.set()
        context.cancelJobGroup(_GROUP)

    timer = threading.Timer(seconds, give_up)
    context.setJobGroup(_GROUP, "what executors have", True)
    timer.start()
    try:
        return list(context.parallelize(range(tasks), tasks).mapPartitions(look).collect())
    except Exception as error:
        ended = has_ended(spark)  # a master ends an application whose executors never reach their driver
        if late.is_set() or ended:
            raise NoExecutor(
                f"{context.master}: no executor "
                + ("before it ended the application" if ended else f"within {seconds:.0f} s"),
                hint="has the cluster the cores and the memory that [spark.settings] asks for (spark.cores.max, "
                f"spark.executor.memory, 1g by default), and do its hosts reach the driver at {host} (spark.driver.host)?",
            ) from error
        raise ExecutorUnfit(
            f"{context.master}: its executors cannot run Python: {one_line(error)}", hint=_PYTHON_HINT
        ) from error
    finally:
        timer.cancel()
        with suppress(Exception):  # another error would hide why it ended
            for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                context.setLocalProperty(name, None)


def _check(found: dict[str, Any]) -> None:
    """Raises ExecutorUnfit: something is missing where this was said."""
    where, own = f"executor on {found['host']}", version("mainstem")
    if found["mainstem"] != own:
        raise ExecutorUnfit(
            f"{where}: expected mainstem {own} in {found['python']}, found {found['mainstem']}", hint=_PYTHON_HINT
        )
    for place, reason in found["unusable"].items():
        hint = "what --data, the `path` of a sink and [security] name is to be on all hosts of the cluster at the same path, "
        hint += "for the user that executors run as"
        raise ExecutorUnfit(f"{where}: expected {place} as the driver has it: {reason}", hint=hint)
    for name, reason in found["unreached"].items():
        hint = "[broker] advertised_host, or a Kafka's advertised listeners: what the executors reach the log by"
        if name == "the driver":
            hint = '[spark.settings] "spark.driver.host": what the executors reach the driver by; '
            hint += '"spark.mainstem.claims.port": the first of the ports that its jobs take'
        raise ExecutorUnfit(f"{where}: {name} cannot be reached from there: {reason}", hint=hint)
