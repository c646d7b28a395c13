"""`[spark] master = "k8s://…"`: Spark's own Kubernetes backend, against an API server that records what it is asked for
and runs the pods as processes (`tests/support/kubernetes.py`).
"""

import json
import sys
from collections import Counter

import pytest

from tests.support.kubernetes import api_server
from tests.support.node import Node
from tests.support.waiting import wait_until

SETTINGS = """
[topics.orders]
schema = "order.avsc"

[spark]
master = "k8s://{url}"

[spark.settings]
"spark.driver.host" = "127.0.0.1"
"spark.executor.instances" = "2"
"spark.executor.memory" = "500m"
"spark.executor.cores" = "1"
"spark.pyspark.python" = "{python}"
"spark.executorEnv.REGION" = "north"
"spark.kubernetes.namespace" = "shop"
"spark.kubernetes.container.image" = "example/shop-spark:7"
"spark.kubernetes.executor.request.cores" = "250m"
"spark.kubernetes.executor.limit.cores" = "2"
"spark.kubernetes.executor.label.team" = "orders"
"spark.kubernetes.executor.apiPollingInterval" = "1s"
"spark.kubernetes.authenticate.caCertFile" = "{ca}"
"spark.kubernetes.authenticate.oauthToken" = "t0ken"
"spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName" = "shop-data"
"spark.kubernetes.executor.volumes.persistentVolumeClaim.data.mount.path" = "{data}"
"""
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
JOBS = """
import os
import sys

from mainstem.process import stream, topic
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

orders = topic("orders")


@F.udf(StringType())
def where(number):
    return f"{os.environ['REGION']} {os.environ['IMAGE']}"


@stream(to="placed")
def placed(orders):
    return orders.withColumn("place", where("id"))
"""


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_executors_are_pods_as_the_settings_say_and_run_the_python_of_their_image(tmp_path):
    project, data, python = tmp_path / "project", tmp_path / "data", tmp_path / "image-python"
    project.mkdir()
    python.write_text(f'#!/bin/sh\nIMAGE=7 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (project / "order.avsc").write_text(json.dumps(ORDER))
    (project / "jobs.py").write_text(JOBS)
    with api_server(tmp_path / "pods") as api:
        settings = SETTINGS.format(url=api.url, python=python, ca=api.ca_file, data=data)
        (project / "mainstem.toml").write_text(settings)
        with Node(project, data) as node:
            node.post("orders/events", [{"id": number} for number in range(100)])
            wait_until(lambda: len(node.values_of("placed")) >= 100, "they are there", seconds=240)
            found = Counter((row["id"], row["place"]) for row in node.values_of("placed"))
            assert found == Counter((number, "north 7") for number in range(100))
            wait_until(lambda: len(api.running) == 2, "both pods run", seconds=60)
            node.stop()
        wait_until(lambda: api.running == [], "no pod is left", seconds=60)
    assert api.tokens == {"Bearer t0ken"}
    for pod in api.pods:
        assert pod["metadata"]["labels"]["team"] == "orders"
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "example/shop-spark:7"
        assert container["resources"]["requests"]["cpu"] == "250m"
        assert container["resources"]["limits"]["cpu"] == "2"
        assert container["resources"]["requests"]["memory"] == "884Mi"  # and what Spark adds
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert (env["REGION"], env["PYTHONSAFEPATH"]) == ("north", "1")
        assert "PYSPARK_PYTHON" not in env
        (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == str(data)]
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
        assert volume["persistentVolumeClaim"]["claimName"] == "shop-data"
