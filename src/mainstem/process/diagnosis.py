"""Why a job's query has ended, as people are told of it: where in their code, in one line, and what to do.

JobFailed     another try may go well
JobRefused    no other try mends it: a shape that rows do not fit in any more, damage, input that is gone
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mainstem.client.connection import records_are_gone
from mainstem.core import MainstemError, UserError
from mainstem.process.another_version import start_another
from mainstem.process.calling import place_of, reason_of
from mainstem.process.culprit import FailedBatch
from mainstem.process.declare import BadDeclaration, Location
from mainstem.process.frozen import Version
from mainstem.process.sink_checkpoint import Checkpoint
from mainstem.registry.spark import TopicSchema, later_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class JobFailed(MainstemError):
    """A job's query ended; the message has the user's file and line, as far as the cause lies there. Which job that is
    says whoever tells it. `batch` is what it failed with.
    """

    def __init__(self, location: Location | None, reason: str, *, hint: str = "") -> None:
        super().__init__(f"{location}: {reason}" if location else reason, hint=hint)
        self.batch: FailedBatch | None = None


class JobRefused(JobFailed, UserError):
    """The job ended by an error that another try cannot mend:
    its code, its settings, a checkpoint that does not fit.
    """


class JobHangs(JobFailed):
    """It was stopped, and its function has not returned: its query goes on till it does."""


def check_shape(job: str, failure: BaseException | None, schemas: Iterable[TopicSchema]) -> None:
    """A topic has a schema since that its readers of before cannot read; to leave its rows out would lose them.

    Args:
        job: its name.
        failure: of the query.
        schemas: of its inputs, as it has read them.

    Raises:
        JobRefused: that is why.
    """
    found = later_id(failure) if failure is not None else None
    if found is None:
        return
    schema_id, topic = found
    reason = next(each.later[schema_id] for each in schemas if each.topic == topic and schema_id in each.later)
    raise JobRefused(
        None,
        f"topic {topic}: schema {schema_id} does not fit into the shape in which this version has read since its "
        f"start: {reason}",
        hint=start_another(job),
    )


def check_damage(job: str, text: str, checkpoint: Checkpoint, committed: int, topics: Iterable[str]) -> None:
    """A file of the checkpoint that was cut or changed, or input that is gone, fails every time:
    no other try mends it.

    Args:
        job: its name.
        text: `java_text` of the query's failure.
        checkpoint: of the query.
        committed: the last batch that the log has.
        topics: that the job reads.

    Raises:
        JobRefused: that is why.
    """
    path = checkpoint.damaged(text)
    if path is not None:
        reason, hint = f"{path}: cut or changed since it was written", checkpoint.repair(path, committed)
        raise JobRefused(None, reason, hint=hint)
    if records_are_gone(text):
        raise JobRefused(
            None,
            f"records of {', '.join(topics)} are gone that it has not read: deleted with their topic, or by its retention",
            hint=start_another(job),
        )


def java_text(spark: "SparkSession", query: "StreamingQuery") -> str:
    """What Spark says of the failure of a query, with all of its causes; "" where it has none."""
    jvm: Any = spark._jvm
    failure = query._jsq.exception()
    return str(jvm.org.apache.spark.util.Utils.exceptionString(failure.get())) if failure.isDefined() else ""


def failed(
    error: BaseException,
    failure: BaseException | None,
    version: Version,
    declared: Location,
    batch: FailedBatch | None = None,
) -> JobFailed:
    """Any other failure, to be raised.

    Args:
        error: what went wrong.
        failure: of the query, which may know the place where `error` does not.
        version: the frozen code: the place is told as one of the project's.
        declared: where the job is: the place where neither knows one.
        batch: what it failed with.
    """
    place = place_of(error, version.directory)
    if place is None and failure is not None:
        place = place_of(failure, version.directory)
    hint = error.hint if isinstance(error, MainstemError) else ""
    reason = str(error) if isinstance(error, MainstemError) else reason_of(error)
    if isinstance(error, BadDeclaration):  # of its function, called within the batch: its message begins with the place
        place, reason = error.location if isinstance(error.location, Location) else place, error.reason
    kind = JobRefused if isinstance(error, UserError) else JobFailed
    told = kind(version.in_project(place or declared), reason, hint=hint)
    told.batch = batch
    return told
