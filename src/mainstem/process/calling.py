"""Calling a job's function: its results as DataFrames, whether it gives them or the SQL that makes them; and where in
the project's code an error belongs.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.core.causes import one_line
from mainstem.process.declare import BadDeclaration, Job, Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LINE_OF_SQL = re.compile(r"\(?line (\d+),? pos(?:ition)? \d+\)?")
_UNNAMED_ROW = "Cannot convert Row into dict"
"""All that Spark says of a `Row(1, 2)` from a state function, behind lines that are none of the user's."""
_COMMANDS = (
    "org.apache.spark.sql.catalyst.plans.logical.Command",
    "org.apache.spark.sql.catalyst.plans.logical.ParsedStatement",
)
"""What Spark's parser makes of SQL that does something, instead of asking."""


def call(job: Job, frames: Mapping[str, Any], directory: Path) -> "tuple[DataFrame, ...]":
    """The function's results on `frames`, by parameter: one for each of the job's outputs.

    Raises:
        BadDeclaration: it raised, or returned something else; at the line of the project's code where that happened.
    """
    try:
        found = job.function(**frames)
    except Exception as error:
        raise BadDeclaration(place_of(error, directory) or job.location, f"{job.name}: {one_line(error)}") from error
    results = found if isinstance(found, tuple | list) else (found,)
    if len(results) != len(job.outputs):
        topics = ", ".join(each.topic for each in job.outputs)
        raise BadDeclaration(
            job.location, f"{job.name}: expected {len(job.outputs)} results, for {topics}, found {len(results)}"
        )
    return tuple(_rows(job, each, frames, directory) for each in results)


def _rows(job: Job, result: object, frames: Mapping[str, Any], directory: Path) -> "DataFrame":
    from pyspark.sql import DataFrame

    if isinstance(result, str):
        return _query(job, result, frames, directory)
    if not isinstance(result, DataFrame):
        raise BadDeclaration(
            job.location, f"{job.name}: expected a DataFrame or SQL as result, found {type(result).__name__}"
        )
    return result


def _query(job: Job, text: str, frames: Mapping[str, Any], directory: Path) -> "DataFrame":
    """The rows of an SQL query over tables that are called as the job's parameters."""
    from py4j.java_gateway import is_instance_of
    from pyspark.errors import PySparkException

    session = next(iter(frames.values())).sparkSession
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    try:
        parsed = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
        is_query = not any(is_instance_of(session.sparkContext._gateway, parsed, each) for each in _COMMANDS)
        result: DataFrame | None = session.sql(text) if is_query else None
    except PySparkException as error:
        line = _LINE_OF_SQL.search(str(error))
        location = _place_of_sql(job, text, int(line[1]) if line else 1, directory)
        raise BadDeclaration(location, f"{job.name}: {one_line(error)}") from error
    if result is None:
        location = _place_of_sql(job, text, 1, directory)
        raise BadDeclaration(location, f"{job.name}: expected a query, found {parsed.nodeName()}")
    return result


def _place_of_sql(job: Job, text: str, line: int, directory: Path) -> Location:
    """Where line `line` of a query stands: in the file that has it as its text, or as a text in its code; the job,
    where it was put together.
    """
    own = Path(job.location.file)
    for file in (own, *sorted(directory.rglob("*.sql")), *sorted(directory.rglob("*.py"))):
        for first in _lines_with(text, file):
            return Location(str(file), first + line - 1)
    return job.location


def _lines_with(text: str, file: Path) -> Iterator[int]:
    try:
        content = file.read_text()
        if file.suffix == ".sql":
            yield from [1] if content == text else []
            return
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Constant) and node.value == text:
                yield node.lineno
    except (OSError, ValueError, SyntaxError):
        return


def reason_of(error: BaseException) -> str:
    """What failed, in one line; in our words where Spark's do not say what to mend."""
    line = one_line(error)
    if _UNNAMED_ROW in line:
        return "a state function gave a Row without names: expected Row(column=value, …) with those of outputStructType"
    return line


def place_of(error: BaseException, directory: Path) -> Location | None:
    """The innermost line below `directory` that an error passed through: in this process, or in a Spark worker."""
    place = None
    seen: list[BaseException | None] = [error, error.__cause__]
    for each in seen:
        traceback = each.__traceback__ if each is not None else None
        while traceback is not None:
            file = Path(traceback.tb_frame.f_code.co_filename)
            if file.is_relative_to(directory):
                place = Location(str(file), traceback.tb_lineno)
            traceback = traceback.tb_next
    for file_name, line in re.findall(r'File "([^"]+)", line (\d+)', str(error)):
        if Path(file_name).is_relative_to(directory):
            place = Location(file_name, int(line))
    return place
