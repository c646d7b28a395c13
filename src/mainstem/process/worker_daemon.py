"""Spark's daemon of Python workers, which has imported what each of them needs before it forks them.

    JVM -- `python -m` this --> daemon -- fork, for a task that finds no idle worker --> worker

Spark's own daemon imports nothing, as nobody may fork once there are threads that somebody waits for. So a worker took
0.7 s of a processor and 100 MB for its imports, more than for most batches; and workers come and go: a task that fails
takes its worker with it, which may have been another job's. What is imported here starts one thread, of an allocator
that is made for forks (jemalloc in pyarrow).

Workers leave the processors to the driver and the log where these want them: a job that drains a backlog keeps all of
them busy, and a batch of another one is mostly planning and noting (docs/decisions/jobs.md).
"""

import gc
import os

import numpy as np  # noqa: F401
import pandas as pd  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark import daemon

import mainstem.process.sink_task  # noqa: F401

_NICENESS = 10

if __name__ == "__main__":
    os.nice(_NICENESS)
    gc.collect()
    gc.freeze()  # workers collect after each task: what they have from here stays in memory that they share
    daemon.manager()
