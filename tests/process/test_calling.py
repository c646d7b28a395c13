"""A function's results are DataFrames, or SQL over its inputs; what is wrong with it is told with the user's line."""

from pathlib import Path
from textwrap import dedent

import pytest

from mainstem.process.calling import call, place_of, reason_of
from mainstem.process.declare import BadDeclaration
from mainstem.process.project import load_project

pytestmark = pytest.mark.spark

HEAD = """\
from pathlib import Path
from mainstem.process import changelog, stream, table, topic
orders = topic("orders")
customers = changelog("customers", key="customer")
refunds = topic("refunds", key="id")
"""
ORDERS = [(1, "ann", 100), (2, "bob", -50), (3, "ann", 7)]


def called(spark, directory, jobs):
    """The rows of each result of the job of `jobs`, as tuples."""
    (directory / "mainstem.toml").touch()
    (directory / "jobs.py").write_text(HEAD + dedent(jobs))
    job = load_project(directory).jobs["job"]
    frames = {
        "orders": spark.createDataFrame(ORDERS, "id long, customer string, cents long"),
        "customers": spark.createDataFrame([("ann", "north")], "customer string, region string"),
    }
    results = call(job, {name: frames[name] for name in job.parameters}, directory)
    return [sorted(tuple(row) for row in each.collect()) for each in results]


def test_sql_is_a_query_over_tables_that_are_called_as_the_parameters(spark, tmp_path):
    assert called(spark, tmp_path, '''
        @stream(to="enriched")
        def job(orders, customers):
            return """
                select id, region from orders
                left join customers using (customer)
                where cents > 0
            """
    ''') == [[(1, "north"), (3, "north")]]  # fmt: skip


def test_a_job_may_give_several_results_as_rows_or_sql(spark, tmp_path):
    results = called(spark, tmp_path, """
        @stream(to="paid", key="id", also=[refunds])
        def job(orders):
            return orders.where("cents >= 0").select("id"), "select id, -cents as cents from orders where cents < 0"
    """)  # fmt: skip
    assert results == [[(1,), (3,)], [(2, 50)]]


def test_sql_may_lie_in_a_file_of_its_own_and_errors_are_told_with_its_line(spark, tmp_path):
    (tmp_path / "totals.sql").write_text(
        "select customer,\n       sum(cents) as cents\nfrom orders\ngroup by customer\n"
    )
    job = """
        @stream(to="totals")
        def job(orders):
            return Path(__file__).with_name("totals.sql").read_text()
    """
    assert called(spark, tmp_path, job) == [[("ann", 107), ("bob", -50)]]
    (tmp_path / "totals.sql").write_text(
        "select customer,\n       sum(sents) as cents\nfrom orders\ngroup by customer\n"
    )
    with pytest.raises(BadDeclaration) as refused:
        called(spark, tmp_path, job)
    assert str(refused.value).startswith(f"{tmp_path / 'totals.sql'}:2: job: [UNRESOLVED_COLUMN")


@pytest.mark.parametrize(
    ("returned", "line", "message"),
    [
        ('"""\n    select id\n    frm orders where"""', 12, r"\[PARSE_SYNTAX_ERROR\]"),
        ('"""\n    select id,\n    nobody\n    from orders"""', 12, r"\[UNRESOLVED_COLUMN.*nobody"),
        ('"select * from order_s"', 10, r"\[TABLE_OR_VIEW_NOT_FOUND\].*order_s"),
        ('"drop table orders"', 10, "expected a query, found DropTable"),
        ('"insert into orders select * from orders"', 10, "expected a query, found InsertIntoStatement"),
        ("orders.count()", 8, "expected a DataFrame or SQL as result, found int"),
        ("(orders, orders)", 8, "expected 1 results, for out, found 2"),
        ("None", 8, "found NoneType"),
        ("orders.select('nobody')", 10, r"\[UNRESOLVED_COLUMN"),
    ],
)
def test_what_cannot_run_is_told_with_the_users_line(spark, tmp_path, returned, line, message):
    with pytest.raises(BadDeclaration, match=message) as refused:
        called(spark, tmp_path, f"\n\n@stream(to='out')\ndef job(orders):\n    return {returned}\n")
    assert (refused.value.location.file, refused.value.location.line) == (str(tmp_path / "jobs.py"), line)


def test_the_place_of_an_error_in_a_worker_is_the_projects_line():
    worker = """[UDF] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/project/jobs.py", line 7, in double
    return cents / 0
ZeroDivisionError: division by zero
	at org.apache.spark.api.python.BasePythonRunner"""
    assert str(place_of(RuntimeError(worker), Path("/project"))) == "/project/jobs.py:7"


def test_a_row_without_names_from_a_state_function_is_told_with_what_it_is_to_be():
    said = "pyspark.errors.exceptions.base.PySparkTypeError: [CANNOT_CONVERT_TYPE] Cannot convert Row into dict."
    text = f'Traceback (most recent call last):\n  File "/pyspark/sql/types.py", line 3594, in asDict\n{said}'
    assert reason_of(RuntimeError(text)).startswith(
        "a state function gave a Row without names: expected Row(column=value, …)"
    )
    assert reason_of(RuntimeError("else")) == "RuntimeError: else"
