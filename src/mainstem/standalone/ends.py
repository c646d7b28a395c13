"""Who stands at the ends of a project's graph: the sources that write its topics, the destinations, views and splices
that read them.

`mainstem.process` knows jobs alone; what runs beside them is in the settings of other rooms.
"""

import re
from collections.abc import Collection, Set

import msgspec

from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.process.plan import Plan, PlannedJob, PlannedTopic
from mainstem.standalone.config import NodeConfig

COLLECTOR = "collector"


def with_ends(plan: Plan, config: NodeConfig, existing: Collection[str] | None = None) -> Plan:
    """`plan` with the writer and the destinations of each topic, and what a job waits for that is not known yet; with
    the topics that splices write, too.

    Args:
        plan: of the jobs.
        config: of the project, with all else.
        existing: the topics that there are; None where that is not known.
    """
    plain = _plain_names(plan)
    topics = [
        msgspec.structs.replace(
            topic,
            writer=f"job {topic.producer}" if topic.producer else source_of(topic.name, config),
            destinations=[
                *destinations_of(topic.name, config),
                *_views_of({topic.name, plain.get(topic.name, topic.name)}, config),
                *(f"splice {name}" for name in _splices_of(topic, plan, config)),
            ],
        )
        for topic in plan.topics
    ]
    topics += [
        msgspec.structs.replace(
            topic,
            name=name,
            exists=None if existing is None else name in existing,
            producer=None,
            readers=[],
            writer=f"splice {name}",
            destinations=destinations_of(name, config),
        )
        for topic in plan.topics
        for name in _splices_of(topic, plan, config)
    ]
    writers = {topic.name: topic.writer or "" for topic in topics if topic.columns is None and topic.producer is None}
    jobs = []
    for job in plan.jobs:
        if job.determinism is None:
            job = msgspec.structs.replace(job, reason=f"{job.reason}; {_known_once(job, plan, writers)}")
        jobs.append(job)
    return msgspec.structs.replace(plan, topics=topics, jobs=jobs)


def source_of(topic: str, config: NodeConfig) -> str:
    """The source that writes `topic`, as far as the settings tell;
    the collector takes what no source and no job writes.
    """
    for name, source in config.sources.items():
        if isinstance(source, FileSourceConfig) and source.topic == topic:
            return f"source {name}"
        if isinstance(source, PostgresSourceConfig) and _is_of_database(topic, name, source):
            return f"source {name}"
    return COLLECTOR


def destinations_of(topic: str, config: NodeConfig) -> list[str]:
    """The destinations that read `topic`."""
    lakehouses = [name for name, each in config.lakehouses.items() if re.fullmatch(each.topics, topic)]
    replicas = [
        name for name, each in config.connect_sinks.items() if source_of(topic, config) == f"source {each.source}"
    ]
    return [f"sink {name}" for name in (*lakehouses, *replicas)]


def _plain_names(plan: Plan) -> dict[str, str]:
    """By the outputs of the versions that run, what readers say who mean the current version, where the plan has no
    topic of that name.
    """
    there = {topic.name for topic in plan.topics}
    names = {job.output: job.output.removesuffix(f".v{job.version}") for job in plan.jobs}
    return {output: name for output, name in names.items() if name not in there}


def _views_of(names: Set[str], config: NodeConfig) -> list[str]:
    """The views that are made of a topic, by its names."""
    return [
        f"view {view}@{node}"
        for node, serve in config.serve.items()
        for view, each in serve.views.items()
        if not names.isdisjoint(each.names)
    ]


def _splices_of(topic: PlannedTopic, plan: Plan, config: NodeConfig) -> list[str]:
    """The splices of the job whose version, as the project means it, writes this topic."""
    jobs = {job.name for job in plan.jobs if job.output == topic.name}
    return [name for name, each in config.splices.items() if each.job in jobs]


def _is_of_database(topic: str, name: str, source: PostgresSourceConfig) -> bool:
    table = topic.removeprefix(f"{name}.")
    if table == topic:
        return False
    return not source.tables or table in {"transactions", *(each.removeprefix("public.") for each in source.tables)}


def _known_once(job: PlannedJob, plan: Plan, writers: dict[str, str]) -> str:
    """Who has to write first, somewhere above `job`;
    `writers` are those of the topics without a schema, no job among them.
    """
    jobs = {each.name: each for each in plan.jobs}
    # Not by a job's output, whose name has its version.
    makers = {topic.name: jobs[topic.producer] for topic in plan.topics if topic.producer}
    found: list[str] = []
    above = [job]
    for each in above:
        for topic in each.inputs.values():
            if topic in writers:
                found.append(
                    f"topic {topic} has a schema" if writers[topic] == COLLECTOR else f"{writers[topic]} has started"
                )
            elif topic in makers and makers[topic].determinism is None and makers[topic] not in above:
                above.append(makers[topic])
    return f"known once {' and '.join(dict.fromkeys(found))}"
