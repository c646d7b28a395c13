"""The same project, unchanged, on three brokers of Apache Kafka, while leaders of its topics are killed."""

import pytest

from tests.support.demo import run_demo
from tests.support.kafka_cluster import KafkaCluster

KILLED = {"posted 10,000 to flights": "flights", "posted 20,000 to flights": "__mainstem.commits"}
"""What the demo says, and the topic whose leader is killed then."""


@pytest.mark.kafka
@pytest.mark.timeout(1200)
def test_killed_leaders_change_nothing(kafka_cluster: KafkaCluster, tmp_path):
    killed: list[int] = []

    def kill_a_leader(line: str) -> None:
        for said, topic in KILLED.items():
            if said in line:
                for broker in killed[-1:]:
                    kafka_cluster.start(broker)
                    kafka_cluster.wait_until_in_sync()
                killed.append(kafka_cluster.leader(topic, 0))
                kafka_cluster.kill(killed[-1])

    options = (
        "--flights",
        "20000",
        "--changes",
        "150",
        "--bootstrap",
        kafka_cluster.bootstrap,
        "--work",
        str(tmp_path / "work"),
    )
    output = run_demo(*options, seconds=1100, on_line=kill_a_leader)
    assert len(killed) == len(KILLED)
    assert not kafka_cluster.is_running(killed[-1])
    assert "all equal" in output.splitlines()
    assert "the books balance" in output
