"""The driver of a project as a process, for killing: it says `{"ready": PID OF THE JVM}` once its jobs have started."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.connection import Connection
from mainstem.core import SystemClock
from mainstem.core.logging import configure
from mainstem.process.frozen import freeze
from mainstem.process.project import load_project
from mainstem.process.run import JobDriver
from mainstem.process.session import SparkConfig, start_session
from mainstem.registry.client import Registry


class Config(msgspec.Struct, frozen=True):
    """What it is started with."""

    project: str
    bootstrap: str
    registry: str
    data: str
    scratch: str


def main() -> None:
    configure("driver", level="warning")
    config = msgspec.json.decode(sys.argv[1], type=Config)
    scratch, data = Path(config.scratch), Path(config.data)
    scratch.mkdir(parents=True)
    spark = start_session("realtime", SparkConfig(driver_memory="700m"), directory=scratch)
    version = freeze(Path(config.project), data, SystemClock())
    project = load_project(version.directory)
    driver = JobDriver(spark, project, version, Connection(config.bootstrap), Registry(config.registry), data)
    driver.start()
    gateway: Any = spark.sparkContext._gateway
    os.write(1, json.dumps({"ready": gateway.proc.pid}).encode() + b"\n")
    while True:
        driver.step()
        time.sleep(0.1)
