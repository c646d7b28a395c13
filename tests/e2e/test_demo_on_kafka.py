"""The same project, unchanged, on three brokers of Apache Kafka, while the leader of a partition is killed."""

import pytest

from tests.support.demo import run_demo
from tests.support.kafka_cluster import KafkaCluster


@pytest.mark.kafka
@pytest.mark.timeout(1200)
def test_a_killed_leader_changes_nothing(kafka_cluster: KafkaCluster, tmp_path):
    killed = []

    def kill_a_leader(line: str) -> None:
        if not killed and "posted 10,000 to flights" in line:
            leader = kafka_cluster.leader("flights", 0)
            kafka_cluster.kill(leader)
            killed.append(leader)

    options = ("--flights", "20000", "--bootstrap", kafka_cluster.bootstrap, "--work", str(tmp_path / "work"))
    output = run_demo(*options, seconds=1100, on_line=kill_a_leader)
    assert killed
    assert not kafka_cluster.is_running(killed[0])
    assert "all equal" in output.splitlines()
    assert "the books balance" in output
