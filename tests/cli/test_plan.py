import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mainstem.cli import group
from mainstem.process.declare import BadDeclaration

JOBS = """
from pyspark.sql import DataFrame
from mainstem.process import stream, topic

orders = topic("orders", schema="orders.avsc")


@stream(to="big_orders", key="number")
def big_orders(orders: DataFrame) -> DataFrame:
    return orders.filter("amount > 100")
"""
SCHEMA = """{"type": "record", "name": "Order", "fields": [
  {"name": "number", "type": "long"}, {"name": "amount", "type": "double"}]}"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mainstem.toml").write_text("[project]\njobs = 'jobs.py'\n")
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "orders.avsc").write_text(SCHEMA)
    return tmp_path


@pytest.mark.spark
def test_the_graph_is_shown_before_anything_runs(project):
    command = [sys.executable, "-m", "mainstem", "plan", str(project), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    (job,) = planned["jobs"]
    assert (job["inputs"], job["output"], job["keeps_order"]) == ({"orders": "orders"}, "big_orders", True)
    assert [column["name"] for column in job["columns"]] == ["number", "amount"]
    assert not (project / ".mainstem").exists()


def test_a_wrong_declaration_names_file_and_line(project):
    (project / "jobs.py").write_text(JOBS.replace("def big_orders(orders:", "def big_orders(ordres:"))
    result = CliRunner().invoke(group, ["plan", str(project)])
    assert isinstance(result.exception, BadDeclaration)
    assert "jobs.py:" in str(result.exception)
    assert "ordres" in str(result.exception)
