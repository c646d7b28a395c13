"""Spark's Python workers are forked from a process that has imported what they need."""

import os
import sys
from subprocess import run

import psutil
import pytest

IMPORTED = """
import sys
import psutil
import mainstem.process.worker_daemon
needed = {"numpy", "pandas", "pyarrow", "pyspark.worker", "mainstem.process.sink_task"}
print(psutil.Process().num_threads(), sorted(needed - set(sys.modules)))
"""


def test_what_it_imports_starts_no_thread_but_the_allocators():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as Spark sets it for its workers
    done = run([sys.executable, "-c", IMPORTED], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"


@pytest.mark.spark
def test_workers_on_this_machine_are_its_children(spark):
    def parent(batches):
        import pyarrow as pa

        rows = sum(batch.num_rows for batch in batches)
        said = " ".join(psutil.Process(os.getppid()).cmdline())
        yield pa.RecordBatch.from_pydict({"rows": [rows], "said": [said]})

    found = spark.range(0, 4, 1, 2).mapInArrow(parent, "rows long, said string").collect()
    assert [row.rows for row in found] == [2, 2]
    assert all("-m mainstem.process.worker_daemon" in row.said for row in found)
