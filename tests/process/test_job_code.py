"""What a job reaches of its project, and what it does not."""

from textwrap import dedent

import pytest

from mainstem.process.job_code import ProjectCode

JOBS = """\
    '''A project.'''
    import csv
    from pathlib import Path
    from typing import TYPE_CHECKING

    import helpers
    from helpers import rounded, unused
    from mainstem.process import changelog, stream, table, topic
    from pyspark.sql import functions as F

    if TYPE_CHECKING:
        from pyspark.sql import DataFrame

    orders = topic("shop.orders")
    customers = changelog("shop.customers", key="id")
    SIZE = 5
    OTHER = 6
    TAXES = Path(__file__).parent / "taxes.csv"

    @F.udf("long")
    def bucket(value):
        '''Of five.'''
        return value // SIZE

    @stream(to="shop.hourly", key="id")
    def hourly(orders):
        '''By the hour.'''
        return orders.select(bucket("cents").alias("id"), rounded("cents"))

    @table(to="shop.visits", key="id")
    def visits(hourly, customers):
        return hourly.where(f"id > {OTHER}")

    @stream(to="shop.taxed")
    def taxed(orders):
        return orders.select(F.lit(len(list(csv.reader(TAXES.open())))))
"""
HELPERS = """\
    from deeper.still import factor

    def rounded(column):
        return column * factor()

    def unused(column):
        return column
"""
FILES = {
    "jobs.py": JOBS,
    "helpers.py": HELPERS,
    "deeper/__init__.py": "",
    "deeper/still.py": "def factor():\n    return 2\n\n\nOF_NOBODY = 3\n",
    "taxes.csv": "1,2\n",
    "other.csv": "3,4\n",
}


def codes(**changes):
    files = {name: dedent(text).encode() for name, text in FILES.items()}
    for name, (old, new) in changes.items():
        name = {"jobs": "jobs.py", "helpers": "helpers.py", "still": "deeper/still.py"}.get(name, f"{name}.csv")
        text = files[name].decode()
        assert text.count(old) == 1, (old, text)
        files[name] = text.replace(old, new).encode()
    code = ProjectCode(files, ["jobs.py"])
    found = {job: code.of_job(job) for job in ("hourly", "visits", "taxed")}
    assert None not in found.values()
    return found


def changed(**changes):
    before, after = codes(), codes(**changes)
    return {job for job in before if before[job] != after[job]}


@pytest.mark.parametrize(
    ("file", "old", "new", "jobs"),
    [
        ("jobs", "'''By the hour.'''", "'''Each hour.'''", set()),
        ("jobs", "SIZE = 5", "SIZE = 5  # a comment", set()),
        ("jobs", "import csv\n", "import csv\n\n\n", set()),
        ("jobs", 'bucket("cents").alias("id"), rounded', 'bucket("cents").alias("id"),\n        rounded', set()),
        ("jobs", "SIZE = 5", "SIZE = 7", {"hourly"}),
        ("jobs", "value // SIZE", "value % SIZE", {"hourly"}),
        ("jobs", 'key="id")\ndef hourly', 'key="cents")\ndef hourly', {"hourly", "visits"}),
        ("jobs", 'topic("shop.orders")', 'topic("shop.orders", event_time="at")', {"hourly", "taxed"}),
        ("jobs", 'to="shop.hourly", key="id"', 'to="shop.hours", key="id"', {"hourly", "visits"}),
        ("jobs", 'changelog("shop.customers", key="id")', 'changelog("shop.customers", key="ID")', {"visits"}),
        ("jobs", "OTHER = 6", "OTHER = 8", {"visits"}),
        ("jobs", "OTHER = 6", "OTHER = 6\nMORE = 7", set()),
        ("jobs", "OTHER = 6", "OTHER = 6\nprint('loaded')", {"hourly", "visits", "taxed"}),
        ("jobs", "OTHER = 6", "OTHER = rounded(3)", {"hourly", "visits", "taxed"}),
        ("jobs", "OTHER = 6", "OTHER = 6\nSIZE += 1", {"hourly", "visits", "taxed"}),
        ("jobs", "OTHER = 6", "OTHER = 6\nhelpers.rounded = None", {"hourly", "visits", "taxed"}),
        ("jobs", "OTHER = 6", "OTHER = 6\n@helpers.unused\ndef also(): pass", {"hourly", "visits", "taxed"}),
        ("jobs", "OTHER = 6", "OTHER = 6\nclass Also:\n    helpers.unused(1)", {"hourly", "visits", "taxed"}),
        ("jobs", "OTHER = 6", "OTHER = 6\nclass Also:\n    size = 3\n    def of(self): unused(1)", set()),
        ("jobs", "OTHER = 6", "OTHER = 6\ndef also(x=unused(1)): pass", {"hourly", "visits", "taxed"}),
        ("jobs", "OTHER = 6", "OTHER = 6\n@stream(to='shop.more')\ndef more(orders):\n    return orders", set()),
        ("helpers", "column * factor()", "column + factor()", {"hourly"}),
        ("helpers", "return column\n", "return column + 1\n", set()),
        ("still", "return 2", "return 3", {"hourly"}),
        ("still", "OF_NOBODY = 3", "OF_NOBODY = 4", set()),
        ("taxes", "1,2", "1,3", {"taxed"}),
        ("other", "3,4", "3,5", set()),
    ],
)
def test_an_edit_is_one_of_the_jobs_that_reach_it(file, old, new, jobs):
    assert changed(**{file: (old, new)}) == jobs


@pytest.mark.parametrize(
    "line",
    [
        "return getattr(__import__('helpers'), 'rounded')(orders)",
        "import importlib\n        return importlib.import_module('helpers').rounded(orders)",
        "return eval('rounded')(orders)",
        "return globals()['rounded'](orders)",
    ],
)
def test_where_code_makes_up_what_it_uses_nothing_is_said(line):
    jobs = f"""\
    from mainstem.process import stream, topic
    orders = topic("shop.orders")

    @stream(to="shop.found")
    def found(orders):
        {line}

    @stream(to="shop.plain")
    def plain(orders):
        return orders
    """
    files = {"jobs.py": dedent(jobs).encode(), "helpers.py": b"def rounded(x): return x\n"}
    assert ProjectCode(files, ["jobs.py"]).of_job("found") is None
    assert ProjectCode(files, ["jobs.py"]).of_job("plain") is not None


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"jobs.py": b"def hourly(orders): pass\n"}, "no job of this name"),
        ({"jobs.py": b"@stream(to='a')\ndef hourly(o): pass\n@stream(to='b')\ndef hourly(o): pass\n"}, "two"),
        ({"jobs.py": b"def hourly(:\n"}, "no Python"),
        ({"jobs.py": b"\xff\xfe"}, "no text"),
        ({"jobs.py": b"from ...... import x\n@stream(to='a')\ndef hourly(o): x\n"}, "beyond the project"),
        ({}, "no file"),
    ],
)
def test_what_cannot_be_read_is_not_known(files, why):
    assert ProjectCode(files, ["jobs.py"]).of_job("hourly") is None, why


def test_an_input_may_be_declared_in_any_module_of_the_project():
    files = {
        "topics.py": b"orders = topic('shop.orders')\nother = topic('shop.other')\n",
        "jobs.py": b"@stream(to='a')\ndef job(orders):\n    return orders\n",
    }
    start = ["jobs.py", "topics.py"]
    before = ProjectCode(files, start).of_job("job")
    for old, new, same in ((b"shop.orders'", b"shop.orders', event_time='at'", False), (b"shop.other'", b"x'", True)):
        edited = files | {"topics.py": files["topics.py"].replace(old, new)}
        assert (ProjectCode(edited, start).of_job("job") == before) is same


def test_what_lists_files_may_read_any():
    jobs = "from mainstem.process import stream\n@stream(to='a')\ndef all(o):\n    return [*Path('.').glob('*')]\n"
    files = {"jobs.py": jobs.encode(), "a.csv": b"1"}
    assert ProjectCode(files, ["jobs.py"]).of_job("all") != ProjectCode(files | {"a.csv": b"2"}, ["jobs.py"]).of_job(
        "all"
    )


def test_modules_of_packages_are_found_from_any_directory_that_may_be_on_the_path():
    files = {
        "jobs.py": b"from shop.rules import most\nfrom shop import least\n@stream(to='a')\ndef job(o):\n    return most, least\n",
        "src/shop/__init__.py": b"",
        "src/shop/rules.py": b"from . import deep\nfrom .deep import value\nmost = 3\nless = deep, value\n",
        "src/shop/deep.py": b"value = 1\n",
        "src/shop/least.py": b"from .rules import less\n",
    }
    before = ProjectCode(files, ["jobs.py"]).of_job("job")
    for name, old, new in (
        ("src/shop/rules.py", b"most = 3", b"most = 4"),
        ("src/shop/least.py", b"import less", b"import less as fewer"),
        ("src/shop/deep.py", b"value = 1", b"value = 2"),
    ):
        assert ProjectCode(files | {name: files[name].replace(old, new)}, ["jobs.py"]).of_job("job") != before, name
