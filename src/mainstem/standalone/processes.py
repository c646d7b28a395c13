"""What each process of a project is made of. Every function runs until SIGTERM or SIGINT, then stops in order; where
nothing has begun that an order would matter to, at once.
"""

import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from mainstem.client.connection import Connection
from mainstem.core import Retriable
from mainstem.core.address import parse_address
from mainstem.core.config import PROJECT_FILE, BadSetting
from mainstem.core.locks import DirectoryLock
from mainstem.core.logging import get_logger
from mainstem.core.process import say_ready, wait_for_go
from mainstem.core.task import TaskState
from mainstem.serve.config import node_names
from mainstem.standalone.config import load_config, table_directories
from mainstem.standalone.lakehouses import LockedLakehouse, WithViews
from mainstem.standalone.state import LAYOUT
from mainstem.standalone.supervisor import unfailing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger()

_ENDED = "Spark: its Java process has ended, or its application"


class JavaEnded(Retriable):
    """The JVM of Spark was killed, or ran out of memory, or the cluster has ended its application."""


def stop_on_signals() -> threading.Event:
    """An event that is set by SIGTERM or SIGINT.

    A thread sets it. A handler runs in the midst of what the main thread does, and would wait for ever for the event's
    own lock where that is `stop.wait()`; `SimpleQueue.put` is made for such places.
    """
    stop = threading.Event()
    signals: SimpleQueue[int] = SimpleQueue()

    def set_on_signal() -> None:
        signals.get()
        stop.set()

    threading.Thread(target=set_on_signal, name="stop", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.put(number))
    return stop


def end_on_signals() -> None:
    """Until `stop_on_signals`, SIGTERM or SIGINT ends this process at once."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))


def run_gateway(project: Path, bootstrap: str, gateway: str, data: Path) -> None:
    """The registry, the collector, the dashboard and the metrics.

    Raises:
        AddressInUse: somebody else listens there.
        BrokerUnavailable: the log does not answer.
    """
    from mainstem.client.catalog import read_catalog
    from mainstem.connect import gateway as room
    from mainstem.dash.app import Dashboard
    from mainstem.dash.nodes import Nodes
    from mainstem.process.project_config import project_name
    from mainstem.standalone.dashboard import dashboard_state
    from mainstem.standalone.dashboard_commands import DashboardCommands
    from mainstem.standalone.metrics import Metrics

    config = load_config(project)
    parse_address(gateway, "--gateway")
    settings = msgspec.structs.replace(config.gateway, listen=gateway)
    connection, name = Connection(bootstrap, config.security), project_name(project)
    nodes = Nodes(config.serve, lambda: read_catalog(connection))
    commands = DashboardCommands(project, data, connection)
    read = partial(dashboard_state, data, connection, name, nodes)
    dashboard = Dashboard(connection, read, nodes, commands, listen=gateway)
    room.run(
        connection,
        settings,
        on_ready=lambda at: say_ready(f"listening on {at}"),
        doors=[dashboard, Metrics(data, connection)],
    )


def run_connect(project: Path, bootstrap: str, gateway: str, data: Path) -> None:
    """The sources, the destinations that need no Spark, and the splices."""
    from mainstem.connect.worker import Task, Worker, make_sink, make_source, secrets_of
    from mainstem.process.splice import Splice
    from mainstem.registry.client import Registry
    from mainstem.standalone.tasks import TasksWriter

    stop = stop_on_signals()
    config = load_config(project)
    connection, registry = Connection(bootstrap, config.security), Registry(f"http://{gateway}")
    tasks: dict[str, Task] = {
        f"source {name}": make_source(name, each, connection, registry) for name, each in config.sources.items()
    }
    tasks |= {
        f"sink {name}": make_sink(name, each, connection, registry) for name, each in config.connect_sinks.items()
    }
    tasks |= {f"splice {name}": Splice(name, each.job, connection) for name, each in config.splices.items()}
    secrets = secrets_of([*config.sources.values(), *config.connect_sinks.values()])
    save = unfailing(TasksWriter(data, os.getpid()).save)
    worker = Worker(tasks, on_change=save, secrets=secrets)
    save(worker.states)
    say_ready(", ".join(tasks))
    worker.run(stop)


def run_serve(project: Path, bootstrap: str, data: Path, node: str) -> None:
    """One serving node of the project; what takes long to import is there when the log is.

    Raises:
        BadSetting: the project has no such node.
        DirectoryInUse: another process is this node.
        AddressInUse: somebody else listens there.
        BrokerUnavailable: the log does not answer.
    """
    from mainstem.serve.server import run
    from mainstem.standalone.tasks import TasksWriter

    config = load_config(project)
    nodes = {
        each: (settings, address)
        for name, settings in config.serve.items()
        for each, address in zip(node_names(name, settings), settings.addresses, strict=True)
    }
    if node not in nodes:
        raise BadSetting(
            f"{project / PROJECT_FILE}: expected a serving node {node}, found {', '.join(nodes) or 'none'}"
        )
    settings, address = nodes[node]
    home = data / LAYOUT["serve"] / node
    end_on_signals()  # until the server takes them
    if not wait_for_go():
        return
    save = unfailing(TasksWriter(data, os.getpid(), f"serve-{node}").save)
    with DirectoryLock(home):
        run(
            node,
            settings,
            address,
            Connection(bootstrap, config.security),
            home,
            on_ready=lambda at: say_ready(f"listening on {at}"),
            on_change=save,
        )


def run_spark(
    project: Path,
    bootstrap: str,
    gateway: str,
    data: Path,
    code: str,
    jobs: Sequence[tuple[str, str]],
    *,
    tables: bool,
    application: str = "",
    master: str | None = None,
) -> None:
    """Jobs that run from one version of the project's code in one Spark application, whose driver this process is.

    Spark starts while the processes that the jobs need do the same; their supervisor then says when to go on.

    Args:
        project: where the settings are read from, as they are now; its code is not.
        bootstrap: address of the log.
        gateway: HOST:PORT of the registry.
        data: of the project; it has the frozen code.
        code: hash of the frozen code.
        jobs: (name, version) of those to run.
        tables: keep the lakehouse too.
        application: its name; "" is that of all jobs without one.
        master: where they run, instead of what the settings say.

    Raises:
        BadDeclaration, BadSetting, CorruptData: a job that has never run cannot run.
        DirectoryInUse: another process runs this code from `data` in this application, or one of the jobs.
        JavaEnded: Spark's own process ended, or not well when it was stopped.
    """
    end_on_signals()  # Spark takes long to start, and nobody could break that off; its Java process ends with us
    # A second one would delete the first one's scratch files.
    with DirectoryLock(data / LAYOUT["spark"] / _place(code, application)):
        _drive(project, bootstrap, gateway, data, code, jobs, tables=tables, application=application, master=master)


def _place(code: str, application: str) -> str:
    """What the files of a driver are called."""
    return f"{code}.{application}" if application else code


def _drive(
    project: Path,
    bootstrap: str,
    gateway: str,
    data: Path,
    code: str,
    jobs: Sequence[tuple[str, str]],
    *,
    tables: bool,
    application: str,
    master: str | None,
) -> None:
    from mainstem.connect.sinks.delta import Lakehouse
    from mainstem.connect.sinks.delta_views import Views
    from mainstem.process.frozen import Version
    from mainstem.process.imports import link_for_workers
    from mainstem.process.project import Project
    from mainstem.process.project_config import load_job_configs
    from mainstem.process.run import JobDriver
    from mainstem.process.session import has_ended, start_session, stop_session, worker_imports
    from mainstem.registry.client import Registry
    from mainstem.standalone.frozen_jobs import FrozenJobs
    from mainstem.standalone.tasks import TasksWriter

    config = load_config(project)
    connection = Connection(bootstrap, config.security)
    settings, read_settings = load_job_configs(project), partial(load_job_configs, project)
    running = FrozenJobs(data, code, jobs, project=project, application=application, settings=read_settings)
    running.load()
    home = data / LAYOUT["spark"] / _place(code, application)
    name = f"{running.name} {application}".rstrip()
    spark = start_session(name, config.spark.of(application, master), directory=home)
    if not wait_for_go():
        stop_session(spark)
        return
    places = table_directories(config, data) if tables else {}
    _check_executors(spark, connection, [home, *places.values()])
    stop = stop_on_signals()
    registry = Registry(f"http://{gateway}")

    def driver(version: Version, frozen: Project) -> JobDriver:
        link_for_workers(version.places, worker_imports(home))
        return JobDriver(spark, frozen, version, connection, registry, data, jobs=running.jobs, settings=settings)

    tell = unfailing(TasksWriter(data, os.getpid(), f"spark-{_place(code, application)}").save)
    # A bad destination lags only itself: it is started again by itself, and the jobs go on.
    lakehouses: list[LockedLakehouse] = []

    def states() -> list[TaskState]:
        return running.states + [state for each in lakehouses for state in each.states]

    try:
        running.start(driver)
        for name, place in places.items():
            checkpoint, sink = data / "lakehouse" / name, config.lakehouses[name]
            lakehouse = Lakehouse(spark.newSession(), connection, place, checkpoint, sink, name=name)
            views = Views(connection, place, sink.topics, name=name)
            lakehouses.append(LockedLakehouse(name, place, WithViews(lakehouse, views)))
            lakehouses[-1].start()
        told = states()
        tell(told)
        say_ready(str(running))
        while not (stop.wait(0.25) or has_ended(spark)):
            running.step()
            for each in lakehouses:
                each.step()
            if told != (now := states()):
                told = now
                tell(told)
    except Exception as error:
        if has_ended(spark):  # that is why it failed
            raise JavaEnded(_ENDED) from error
        for end in (running.stop, *(each.stop for each in lakehouses), lambda: stop_session(spark)):
            unfailing(end)()  # another error would hide this one
        raise
    if has_ended(spark):
        raise JavaEnded(_ENDED)
    running.stop()
    for each in lakehouses:
        each.stop()
    if exit_code := stop_session(spark):
        raise JavaEnded(f"Spark: its Java process was asked to end, and did with exit code {exit_code}")


def _check_executors(spark: "SparkSession", connection: Connection, places: Sequence[Path]) -> None:
    """`check_executors`; stops Spark where they cannot run the jobs."""
    from mainstem.process.executors import check_executors
    from mainstem.process.session import stop_session

    try:
        check_executors(spark, connection, places)
    except Exception:
        unfailing(stop_session)(spark)
        raise
