"""`mainstem job run`: one slice of a job, on a Spark of its own, while the project is up."""

from collections.abc import Callable
from pathlib import Path

from mainstem.client.connection import Connection
from mainstem.client.internal import job_key
from mainstem.core import SystemClock, UserError
from mainstem.core.locks import DirectoryLock
from mainstem.process.frozen import code_hash, freeze, load_version, open_version
from mainstem.process.project import load_project
from mainstem.process.project_config import load_job_configs
from mainstem.process.slices import SLICES, Slice, SliceResult, SliceRunner
from mainstem.process.versions import FIRST, is_retired, read_fixed


def run_slice(
    project: Path,
    data: Path,
    connection: Connection,
    gateway: str,
    job: str,
    wanted: Slice,
    *,
    version: str | None = None,
    master: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> SliceResult:
    """Run a slice of a job, unless it is there.

    Args:
        project: its directory.
        data: its data directory; `mainstem up` holds it.
        connection: its log.
        gateway: URL of its registry.
        job: the job's name.
        wanted: the slice.
        version: of the job; None: version 1 where the job runs on demand only, otherwise `slices`, beside those that
            run by themselves.
        master: where it runs, instead of what the settings say.
        tell: is called with what its user should know.

    Raises:
        UserError: there is no such job, it cannot run, or the slice cannot be written.
        DirectoryInUse: another slice of the version runs.
        JobFailed: the function failed; nothing of the slice is visible.
    """
    from mainstem.process.executors import check_executors
    from mainstem.process.imports import link_for_workers, stop_importing
    from mainstem.process.run import JobDriver
    from mainstem.process.session import start_session, stop_session, worker_imports
    from mainstem.registry.client import Registry
    from mainstem.standalone.config import load_config

    loaded = load_project(project)
    if job not in loaded.jobs:
        raise UserError(
            f"{project}: expected job {job}, found {', '.join(loaded.order) or 'none'}",
            hint="`mainstem plan` shows the jobs of the project",
        )
    config = loaded.job_config(job)
    version = version or ((config.version or FIRST) if config.on_demand else SLICES)
    if is_retired(data, job, version):
        raise UserError(f"job {job_key(job, version)} was retired and never runs again", hint="--version names another")
    home = data / "jobs" / job_key(job, version)
    fixed = read_fixed(home)
    sha = code_hash(project)
    if fixed is not None and fixed.sha != sha:
        tell(
            f"job {job_key(job, version)} runs from its frozen code {fixed.sha}: its slices are all of one make; "
            "--version with another name runs the code as it is now, and writes a topic of its own"
        )
        frozen = open_version(data, fixed.sha, project)
    else:
        frozen = freeze(project, data, SystemClock())
    scratch = data / "spark" / job_key(job, version)
    with DirectoryLock(scratch):
        own = load_version(frozen)
        link_for_workers(frozen.places, worker_imports(scratch))
        settings = load_config(project).spark.of(config.application, master)
        spark = start_session(f"{own.name} {job}", settings, directory=scratch)
        try:
            check_executors(spark, connection, [scratch])
            registry = Registry(gateway)
            configs = load_job_configs(project)
            driver = JobDriver(spark, own, frozen, connection, registry, data, jobs=[(job, version)], settings=configs)
            return SliceRunner(driver.bind(job), spark, connection, registry).run(wanted)
        finally:
            stop_session(spark)
            stop_importing()
