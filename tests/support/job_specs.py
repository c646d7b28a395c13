"""What a version of a job is run from, without a project."""

from pathlib import Path

import msgspec
from pyspark.sql.types import StructType

from mainstem.process.analysis import Analysis, Determinism, Result
from mainstem.process.declare import Job, Watermark
from mainstem.process.frozen import Frozen, Version
from mainstem.process.job_spec import JobSpec
from mainstem.process.outputs import JobOutput
from mainstem.process.project import Input
from mainstem.process.project_config import JobConfig
from mainstem.process.versions import Fixed, output_topic, write_fixed

STATEFUL = Analysis((Result(StructType([]), "at"),), "aggregate", Determinism.PREFIX, "", True, False, 0)
STATELESS = msgspec.structs.replace(STATEFUL, stateful=None)


def spec_of(data: Path, job: str, version: str, *, analysis: Analysis = STATEFUL, stream: str = "orders") -> JobSpec:
    """A version of a job that reads a stream and a table; it is bound."""
    declared = Job(job, print, ("o", "c"), job, "stream", (), "at", Watermark("at", "1 hour"), "final", ("jobs.py", 1))
    fixed = Fixed(job, version, f"c0de{version}", {}, output_topic(job, version), 1, 4)
    home = data / "jobs" / f"{job}@{version}"
    write_fixed(home, fixed)
    return JobSpec(
        job=declared,
        inputs=(Input("o", stream, "stream", None), Input("c", "customers", "changelog", None)),
        config=JobConfig(version=version),
        fixed=fixed,
        schemas={},
        analysis=analysis,
        outputs=tuple(
            JobOutput(each, output_topic(each.topic, version), each.kind, 1, 1, "") for each in declared.outputs
        ),
        partitions={},
        version=Version(fixed.sha, data, Frozen(fixed.sha, "", 0)),
        home=home,
    )
