"""Kafka's own Java programs that check themselves, unmodified, against our log; the others: tests/contract."""

import json

import pytest

from tests.support import kafka_tools


@pytest.mark.timeout(900)  # a JVM per tool, on a machine that may be busy
def test_a_producer_that_checks_what_was_acknowledged(mainstem_log):
    bootstrap = ("--bootstrap-server", mainstem_log.bootstrap)
    arguments = ("--topic", "verified", "--max-messages", "2000", "--acks", "-1")
    said = kafka_tools.run("kafka-verifiable-producer", *bootstrap, *arguments).stdout
    summary = json.loads(said.splitlines()[-1])
    assert (summary["sent"], summary["acked"]) == (2000, 2000)
    perf = ("--topic", "verified", "--num-records", "2000", "--timeout", "60000")
    assert ", 2000, " in kafka_tools.run("kafka-consumer-perf-test", *bootstrap, *perf).stdout
