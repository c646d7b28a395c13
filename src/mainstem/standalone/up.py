"""`mainstem up`: all processes of a project on this machine, under one supervisor.

    log ──> gateway (registry, collector) ──> [topics and schemas of the project] ──> connect ──> spark

The log is left out where the project runs on a Kafka of somebody's own. A process that the project has no work for is
not started.
"""

import asyncio
import os
import shlex
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.errors import TopicMismatch
from mainstem.client.internal import job_key
from mainstem.client.topics import cluster_id
from mainstem.core import MainstemError, SystemClock
from mainstem.core.address import format_address, free_port, parse_address
from mainstem.core.config import PROJECT_FILE, BadSetting
from mainstem.core.locks import DirectoryLock
from mainstem.core.logging import get_logger
from mainstem.process import Project, load_project
from mainstem.process.frozen import code_hash, freeze
from mainstem.process.installed import other_packages
from mainstem.process.jars import absent_jars, spark_jars
from mainstem.process.project_config import load_job_configs
from mainstem.process.retire import Marks, finish_retired
from mainstem.process.topics import losses, other_settings, settings_of_topics
from mainstem.process.versions import Assignment, application_of, asked_versions, assignments, edited, left_over
from mainstem.serve.config import node_names
from mainstem.standalone.config import NodeConfig, check_applications, check_topics, load_config, table_directories
from mainstem.standalone.declare import declare_topics
from mainstem.standalone.disks import DiskAlarm
from mainstem.standalone.doctor import check_extra
from mainstem.standalone.state import LAYOUT, UpState, bind_log, bind_project, check_log, claim_directory, save
from mainstem.standalone.supervisor import ChildSpec, ChildState, Supervisor, in_daemon_thread, python, unfailing
from mainstem.standalone.tasks import News, forget_tasks, load_tasks

log = get_logger()

NEWS_EVERY_S = 0.5
DISKS_EVERY_S = 30.0


class Addresses(msgspec.Struct, frozen=True):
    """Where the processes of a project find each other."""

    bootstrap: str
    gateway: str  # HOST:PORT

    @property
    def gateway_url(self) -> str:
        return f"http://{self.gateway}"


def choose_addresses(config: NodeConfig, bootstrap: str | None, listen: str | None, gateway: str | None) -> Addresses:
    """The addresses from the command line, else from the settings; port 0 becomes a free port."""
    broker = (
        (listen, "--listen") if listen else (format_address(config.broker.host, config.broker.port), "[broker] host")
    )
    registry = (gateway, "--gateway") if gateway else (config.gateway.listen, "[gateway] listen")
    return Addresses(bootstrap or _concrete(*broker), _concrete(*registry))


def _concrete(address: str, what: str) -> str:
    host, port = parse_address(address, what)
    if port != 0:
        return address
    try:
        return format_address(host, free_port(host))
    except OSError as error:
        raise BadSetting(f"{what}: {address}: {error.strerror or error}") from None


def child_specs(
    project: Project, config: NodeConfig, data: Path, at: Addresses, *, own_log: bool, master: str | None = None
) -> list[ChildSpec]:
    """The processes that this project needs, in the order in which they start."""
    directory = str(project.directory)
    common = ("--bootstrap", at.bootstrap, "--gateway", at.gateway, "--data", str(data))
    specs: list[ChildSpec] = []
    if own_log:
        settings = ("--config", str(project.directory / PROJECT_FILE))
        command = python("log", "start", "--data", str(data / LAYOUT["log"]), "--listen", at.bootstrap, *settings)
        specs.append(ChildSpec("log", command, ready_within_s=None))  # a recovery may have to read all that there is
    specs.append(ChildSpec("gateway", python("run", "gateway", directory, *common)))
    for name, each in config.serve.items():
        for node in node_names(name, each):
            command = python(
                "run", "serve", directory, "--bootstrap", at.bootstrap, "--data", str(data), "--node", node
            )
            specs.append(ChildSpec(f"serve-{node}", command, early=True))
    if config.connects:
        specs.append(ChildSpec("connect", python("run", "connect", directory, *common)))
    current = freeze(project.directory, data, SystemClock()).sha
    runs = assignments(project.directory, data, SystemClock())
    if config.lakehouses and all(each.application for each in runs):
        runs = [Assignment(current, ()), *runs]
    with_tables = next((each for each in runs if not each.application), None) if config.lakehouses else None
    first = before = specs[-1].name
    for run in runs:
        name = _driver_name("" if run.sha == current else run.sha, run.application)
        spec = spark_spec(project.directory, data, at, run, tables=run is with_tables, name=name, master=master)
        # An application may wait for a cluster of its own, and the others do not wait for that.
        specs.append(msgspec.structs.replace(spec, behind=first if run.application else before))
        before = before if run.application else name
    return specs


def _driver_name(sha: str, application: str) -> str:
    """Of the process that runs the code `sha`, "" as the project is now, in an application."""
    name = f"spark-{sha[:8]}" if sha else "spark"
    return f"{name}.{application}" if application else name


def spark_spec(
    project: Path,
    data: Path,
    at: Addresses,
    runs: Assignment,
    *,
    tables: bool = False,
    name: str | None = None,
    master: str | None = None,
) -> ChildSpec:
    """The driver of jobs that share a version of the code and an application.

    By hash and name: a driver that is started again goes on with its code and its jobs, whatever was edited meanwhile.
    """
    common = ("--bootstrap", at.bootstrap, "--gateway", at.gateway, "--data", str(data))
    command = python("run", "spark", str(project), *common, "--code", runs.sha)
    command += ("--application", runs.application) if runs.application else ()
    command += ("--master", master) if master else ()
    command += tuple(option for job, version in runs.jobs for option in ("--job", job_key(job, version)))
    command += ("--tables",) if tables else ()
    return ChildSpec(name or _driver_name(runs.sha, runs.application), command, ready_within_s=300, early=True)


def missing_drivers(
    project: Path, data: Path, at: Addresses, specs: Iterable[ChildSpec], *, master: str | None = None
) -> list[ChildSpec]:
    """Drivers of versions that were asked for since `specs` were made: of code that none of them runs in their
    application. That of others takes them on by itself. One that does not start shall stop nothing that runs.
    """
    asked: dict[tuple[str, str], list[tuple[str, str]]] = {}
    versions = asked_versions(data)
    settings = load_job_configs(project) if versions else {}
    for each in versions:
        asked.setdefault((each.sha, application_of(settings, each.job)), []).append((each.job, each.version))
    running = {(_option(spec, "--code"), _option(spec, "--application")) for spec in specs}
    missing = [Assignment(sha, tuple(jobs), name) for (sha, name), jobs in asked.items() if (sha, name) not in running]
    found = [spark_spec(project, data, at, each, master=master) for each in missing]
    return [msgspec.structs.replace(spec, vital=False, behind="gateway") for spec in found]


def _option(spec: ChildSpec, name: str) -> str:
    """What a child's command gives for an option; "" without it."""
    return next((value for option, value in pairwise(spec.command) if option == name), "")


def check_same_log(data: Path, bootstrap: str | None, found: str) -> None:
    """Refuse another log than before: positions, schema ids and checkpoints of `data` mean that one.

    Args:
        data: has a marker.
        bootstrap: the Kafka that is meant; None: the log in `data`.
        found: its cluster id; "" where there is no log yet.

    Raises:
        OtherLog: it is another.
    """
    own = data / LAYOUT["log"]
    if bootstrap is None:
        check_log(data, found, f"in {own}", "where it is a Kafka, --bootstrap HOST:PORT names it")
    else:
        hint = "without --bootstrap the project goes on with its own log" if own.is_dir() else "--bootstrap names it"
        check_log(data, found, f"at {bootstrap}", hint)


def without_up(project: Path, data: Path, bootstrap: str) -> str:
    """How a topic of our own log is changed where `up` refuses to run: the log ends with it."""
    config = ["--config", str(project / PROJECT_FILE)]
    start = shlex.join(
        ["mainstem", "log", "start", "--data", str(data / LAYOUT["log"]), "--listen", bootstrap, *config]
    )
    clean = shlex.join(["mainstem", "clean", str(project), "--data", str(data)])
    return f"for that `{start}` starts the log alone; `{clean}` deletes all that the project has kept"


def up(
    path: Path,
    data: Path,
    *,
    bootstrap: str | None = None,
    listen: str | None = None,
    gateway: str | None = None,
    master: str | None = None,
    on_ready: Callable[[UpState], None] = lambda _: None,
    on_change: Callable[[list[ChildState]], None] = lambda _: None,
    on_news: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the project at `path` with its state in `data` until SIGINT, SIGTERM or SIGHUP.

    Args:
        path: the directory with `mainstem.toml`.
        data: made where it is missing.
        bootstrap: a Kafka to run on; None starts our own log.
        listen: address of our own log, instead of the settings'.
        gateway: address of the gateway, instead of the settings'.
        master: where the jobs run, instead of the settings'.
        on_ready: called once, when everything runs.
        on_change: called with the state of all processes whenever one changes.
        on_news: called with a line when a source or sink waits, has failed, or works again, and when a disk is nearly
            full; at the start for each version of a job that is not of the project as it is now, and
            each topic that somebody else has made otherwise, or whose last records a power cut would take.

    Raises:
        DirectoryInUse: another `up` holds `data`.
        NotOurDirectory: `data` holds something else.
        OtherProject, OtherLog: it belongs to another project, or was made with another log.
        BrokerUnavailable: the Kafka at `bootstrap` does not answer.
        BadSetting, BadDeclaration: the project is wrong.
        UserError: the extra `gateway` is not installed.
        ChildFailed: a process refused to start.
    """
    config = load_config(path)
    check_extra("gateway")  # every project has one; else the log would be started first
    disks = [data, *table_directories(config, data).values()]
    project = load_project(path)
    if bootstrap is None:
        check_topics(project, path)
    check_applications(project, config, path)
    with DirectoryLock(data):
        claim_directory(data)
        owner = bind_project(data, project.directory, project.name).id
        if bootstrap is not None:  # before anything there is changed
            check_same_log(data, bootstrap, cluster_id(Connection(bootstrap, config.security)))
        elif not (data / LAYOUT["log"]).is_dir():
            check_same_log(data, None, "")
        at = choose_addresses(config, bootstrap, listen, gateway)
        state = UpState(os.getpid(), str(project.directory), at.bootstrap, at.gateway_url, time.time())
        given = {"--bootstrap": bootstrap, "--listen": listen, "--gateway": gateway, "--master": master}
        state.options = [text for option, value in given.items() if value for text in (option, value)]

        write, tell = unfailing(lambda: save(data, state)), unfailing(on_change)

        def changed(children: list[ChildState]) -> None:
            state.children = children
            write()
            tell(children)

        def declare() -> None:
            connection = Connection(at.bootstrap, config.security)
            found = cluster_id(connection)
            check_same_log(data, bootstrap, found)
            try:
                declare_topics(project, config, connection, at.gateway_url, owner)
            except TopicMismatch as error:
                if bootstrap is None:
                    error.hint += f"; {without_up(project.directory, data, at.bootstrap)}"
                raise
            bind_log(data, found)
            finish_retired(connection, data)
            found_settings = settings_of_topics(connection, project)
            told = other_settings(connection, project, found_settings)
            for line in (*told, *(losses(project, found_settings) if bootstrap is None else ())):
                unfailing(on_news)(line)

        marks = Marks(data)  # of these `declare` takes care
        forget_tasks(data)
        specs = child_specs(project, config, data, at, own_log=bootstrap is None, master=master)
        if any(spec.early for spec in specs) and absent_jars():
            spark_jars()  # here, where its progress is seen: a driver has only so long to start
        news = (*edited(project, data, code_hash(project.directory)), *left_over(project, data), *other_packages(data))
        for each in news:
            unfailing(on_news)(str(each))
        supervisor = Supervisor(specs, data / LAYOUT["logs"], changed, after={"gateway": declare})

        async def run() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_announce(supervisor, unfailing(lambda: on_ready(state))))
                told = [tasks.create_task(_follow_tasks(supervisor, data, unfailing(on_news)))]
                told.append(tasks.create_task(_follow_asked(supervisor, project.directory, data, at, specs, master)))
                told.append(tasks.create_task(follow_marks(marks, Connection(at.bootstrap, config.security))))
                alarm = DiskAlarm()
                told += [tasks.create_task(watch_disk(alarm, each, unfailing(on_news))) for each in disks]
                await supervisor.run()
                for each in told:
                    each.cancel()

        try:
            asyncio.run(run())
        except* KeyboardInterrupt:
            pass


async def _announce(supervisor: Supervisor, tell: Callable[[], None]) -> None:
    if await supervisor.ready():
        tell()


async def _follow_tasks(supervisor: Supervisor, data: Path, tell: Callable[[str], None]) -> None:
    clock, news = SystemClock(), News()
    while True:
        pids = [state.pid for state in supervisor.states]
        for line in news.of(load_tasks(data, pids, clock.now_ms())):
            tell(line)
        await asyncio.sleep(NEWS_EVERY_S)


async def _follow_asked(
    supervisor: Supervisor, project: Path, data: Path, at: Addresses, specs: list[ChildSpec], master: str | None
) -> None:
    """Start the drivers of versions that are asked for while everything runs."""
    while True:
        try:
            missing = missing_drivers(project, data, at, specs, master=master)
        except (MainstemError, OSError) as error:  # a file that somebody has damaged ends nothing that runs
            log.warning("asked_versions_unreadable", reason=str(error))
            missing = []
        for spec in missing:
            specs.append(spec)
            supervisor.add(spec)
        await asyncio.sleep(NEWS_EVERY_S)


async def follow_marks(marks: Marks, connection: Connection) -> None:
    """Finish what a command that was killed has left of a version's end, while everything runs."""
    failing = False
    while True:
        try:
            await in_daemon_thread(lambda: marks.look(connection))
            failing = False
        except (MainstemError, OSError) as error:
            if not failing:
                log.warning("retired_versions_unfinished", reason=str(error))
            failing = True
        await asyncio.sleep(NEWS_EVERY_S)


async def watch_disk(alarm: DiskAlarm, directory: Path, tell: Callable[[str], None]) -> None:
    """Tell when the disk of a directory is nearly full. One that gives an error, or no answer, ends or holds up
    nothing: it may be that of a table, on another machine.
    """
    failing = False
    while True:
        try:
            news = await in_daemon_thread(lambda: alarm.look(directory))
        except OSError as error:
            if not failing:
                log.warning("disk_unknown", directory=str(directory), reason=str(error))
            failing = True
        else:
            failing = False
            for line in news():
                tell(line)
        await asyncio.sleep(DISKS_EVERY_S)
