"""What running a project would change, asked of its code and, where it is up, of its log and registry."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from mainstem.process.plan import Plan


def planned_now(project: Path, data: Path, kafka: str | None) -> "Plan":
    """Check, load and analyse the project, on a Spark of its own.

    Args:
        project: its directory.
        data: where it keeps its state.
        kafka: a log that answers, whether or not the project is up; None: its own, if it is up.

    Raises:
        OtherProject, BadSetting, BadSparkSetting, BadDeclaration: `mainstem up` would refuse it too.
    """
    from mainstem.client.connection import Connection, load_security
    from mainstem.client.internal import SCHEMAS
    from mainstem.client.topics import TopicDescription, list_topics
    from mainstem.process import load_project
    from mainstem.process.imports import import_from, link_for_workers, places_of, stop_importing
    from mainstem.process.plan import plan as make
    from mainstem.process.session import SparkConfig, start_session, stop_session, tasks_at_once, worker_imports
    from mainstem.process.topics import losses, settings_of_topics
    from mainstem.registry.client import Registry
    from mainstem.registry.kept import KeptSchemas
    from mainstem.standalone.config import check_applications, check_topics, load_config, table_directories
    from mainstem.standalone.ends import with_ends
    from mainstem.standalone.state import check_project, is_up, load, marker_file

    config = load_config(project)
    table_directories(config, data)
    room = tasks_at_once(config.spark.master)
    loaded = load_project(project)
    check_applications(loaded, config, project)
    if marker_file(data).exists():
        check_project(data, project, loaded.name)
    state, security = load(data), load_security(project)
    if kafka is None and (state is None or state.own_log):
        check_topics(loaded, project)
    with tempfile.TemporaryDirectory(prefix="mainstem-plan-") as scratch:
        places = places_of(loaded.directory)
        import_from(*places)  # its functions may import more of it
        link_for_workers(places, worker_imports(Path(scratch)))
        with _errors_aside(Path(scratch) / "java"):
            spark = start_session("plan", SparkConfig(), directory=Path(scratch))
        try:
            if kafka is not None:
                connection = Connection(kafka, security)
                existing = list_topics(connection)
                kept = KeptSchemas(connection) if SCHEMAS in existing else None
                return with_ends(
                    make(loaded, spark, registry=kept, topics=existing, data=data, room=room), config, existing
                )
            if state is None or not is_up(data):  # what has never run has no topics yet
                none: dict[str, TopicDescription] | None = {} if state is None else None
                planned = make(loaded, spark, topics=none, data=data, room=room)
                warnings = losses(loaded, {}) if state is None or state.own_log else []
                return with_ends(msgspec.structs.replace(planned, warnings=warnings + planned.warnings), config, none)
            connection = Connection(state.bootstrap, security)
            existing = list_topics(connection)
            planned = make(loaded, spark, registry=Registry(state.gateway), topics=existing, data=data, room=room)
            warnings = losses(loaded, settings_of_topics(connection, loaded)) if state.own_log else []
            return with_ends(msgspec.structs.replace(planned, warnings=warnings + planned.warnings), config, existing)
        finally:
            stop_session(spark)
            stop_importing()


@contextlib.contextmanager
def _errors_aside(file: Path) -> Iterator[None]:
    """Keep what Java says at its start out of sight, except where it does not start; it keeps its stderr for life."""
    sys.stderr.flush()
    before = os.dup(2)
    with file.open("wb") as aside:
        os.dup2(aside.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(before, file.read_bytes())
        raise
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
