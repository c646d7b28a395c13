"""The places for tasks that Spark has, and how many of them a job may hold.

FAIR gives a place that is free to the job that has fewest, and takes none away. So a job whose tasks hang, or take
long, keeps every place that it has got: where it could have all of them, nothing else in the same Spark would go on.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from mainstem.core import UserError
from mainstem.process.project import Input, Project
from mainstem.process.project_config import JobConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def room_of(spark: "SparkSession") -> int:
    """For how many tasks at a time a running Spark has room."""
    context: Any = cast("Any", spark.sparkContext)._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def tasks_of(partitions: Mapping[str, int], inputs: Sequence[Input]) -> int:
    """How many tasks read a job's input where nothing bounds them: one for each partition of its streams."""
    return sum(partitions[each.topic] for each in inputs)


def most_tasks(config: JobConfig, room: int | None) -> int | None:
    """How many tasks of a job may read at a time; None: one for each partition. A third of a room that is shared: two
    jobs that hang, or take long, leave something to the others.

    Args:
        config: the job's settings.
        room: for how many tasks Spark has room that the job shares with others; None where it shares none, or where
            that is for a cluster to say.
    """
    return config.tasks or (None if room is None else max(room // 3, 1))


class TooFewTasks(UserError):
    """Spark has less room for tasks than jobs with `latency="realtime"` hold on to."""


def check_tasks(job: str, tasks: Mapping[str, int], room: int) -> None:
    """See that a job can run beside others. A task that has to wait for a place gets it when its batch is over: its
    partition would never be read, and nobody would hear of it. Without room for one more no other job would run.

    Args:
        job: its name.
        tasks: of jobs with this latency, of it and of those that run, by `<job>@<version>` or job.
        room: for how many tasks at a time Spark has room.

    Raises:
        TooFewTasks: it cannot.
    """
    needed = sum(tasks.values()) + 1
    if needed <= room:
        return
    each = ", ".join(f"{name} {count}" for name, count in sorted(tasks.items()))
    raise TooFewTasks(
        f'job {job}: latency="realtime" holds a task for each partition that it reads ({each}) and leaves one for all '
        f"else: expected room for {needed} tasks at a time, found {room}",
        hint=f'set master = "local[{needed}]", or more, under [spark]; on a cluster give the driver {needed} cores',
    )


def without_room(project: Project, partitions: Mapping[str, int], room: int) -> list[str]:
    """Why jobs whose rows are written as they come could not all run at once.

    Args:
        project: of the jobs.
        partitions: of its topics.
        room: for how many tasks at a time its Spark has room.
    """
    jobs = [name for name in project.order if project.jobs[name].is_realtime]
    try:
        if jobs:
            check_tasks(jobs[-1], {name: tasks_of(partitions, project.inputs[name]) for name in jobs}, room)
    except UserError as error:
        return [f"REFUSED: {error}; {error.hint}"]
    return []


def crowding(project: Project, partitions: Mapping[str, int], room: int) -> list[str]:
    """Jobs a batch of which may have all places of the Spark that they share with others.

    Args:
        project: of the jobs.
        partitions: of its topics.
        room: for how many tasks at a time Spark has room that runs the jobs without an `application`.
    """
    shared = [name for name in project.order if not project.job_config(name).application]
    if len(shared) < 2:
        return []
    found = []
    for name in shared:
        job, config = project.jobs[name], project.job_config(name)
        if job.is_realtime:
            continue
        tasks = tasks_of(partitions, [each for each in project.inputs[name] if each.kind == "stream"])
        tasks = min(tasks, most_tasks(config, room) or tasks)
        what = "reads with"
        if job.watermark is not None and config.state_partitions > tasks:
            tasks, what = config.state_partitions, "keeps its state with"
        if tasks >= room:
            found.append(
                f"job {name} {what} {tasks} tasks, and Spark has room for {room} at a time: while a batch of it takes "
                f'long, {len(shared) - 1} others wait; set master = "local[{2 * tasks}]" under [spark], or give it an '
                "`application` of its own"
            )
    return found
