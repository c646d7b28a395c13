import pytest

from mainstem.core import UserError
from mainstem.core.causes import one_line

CALL = "An error occurred while calling o7122.collectToPython.\n: org.apache.spark.SparkException: "
CAST = """[CAST_INVALID_INPUT] The value 'x' of the type "STRING" cannot be cast to "BIGINT" because it is malformed."""
FRAMES = "\n\tat org.apache.spark.sql.errors.QueryExecutionErrors$.invalidInput(QueryExecutionErrors.scala:145)\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError(), "ValueError"),
        (KeyError("a"), "KeyError: 'a'"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (UserError("topic a: no such topic"), "topic a: no such topic"),
        (ValueError("\n[DELTA_X] no such column\n at org.apache…"), "[DELTA_X] no such column"),
        (ValueError("expected one of:\n  a, b"), "ValueError: expected one of: a, b"),
    ],
)  # fmt: skip
def test_an_error_is_told_in_one_line(error, line):
    assert one_line(error) == line


def test_an_error_in_a_worker_is_what_python_said_there():
    worker = """[UDF] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/project/jobs.py", line 7, in double
    return cents / 0
ZeroDivisionError: division by zero
	at org.apache.spark.api.python.BasePythonRunner"""
    assert one_line(RuntimeError(worker)) == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("page", "line"),
    [
        (f"{CALL}disk full{FRAMES}", "org.apache.spark.SparkException: disk full"),
        (f"{CALL}Found recursive reference:\n{{\n  }}", "org.apache.spark.SparkException: Found recursive reference: {"),
        (f"{CALL}Job aborted: Lost task 0.0 (host executor driver): org…NumberFormatException: {CAST}{FRAMES}", CAST),
        (f"{CALL}Job aborted.{FRAMES}Caused by: org…SparkException: [TASK_FAILED] it{FRAMES}Caused by: a.B: {CAST}", CAST),
        (f"{CALL}[A_B] outside{FRAMES}Caused by: java.io.IOException: no class of Spark's{FRAMES}", "[A_B] outside"),
        ("An error occurred while calling o4.sql.", "An error occurred while calling o4.sql."),
    ],
)  # fmt: skip
def test_of_a_page_of_spark_its_cause_is_told(page, line):
    """A job that could not cast a text told people of a `Py4JJavaError` in `o7122.collectToPython`."""
    assert one_line(ValueError(page)) == line
