"""The word count of conformance/streams.py, short. `make conformance SUITE=streams` is the long one."""

import pytest
from confluent_kafka import Producer

import mainstem
from conformance.frame import LogServer, Unavailable, read_expected
from conformance.run import SUITES
from conformance.streams import (
    HAPPENINGS,
    PARTITIONS,
    PROTOCOLS,
    Application,
    Counts,
    Protocol,
    compiled,
    text,
    the_log_is_killed,
)


@pytest.fixture(scope="module", autouse=True)
def program():
    try:
        return compiled()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_words_are_counted_exactly_once_while_the_log_is_killed(protocol: Protocol, tmp_path):
    server = LogServer(tmp_path)
    try:
        server.start()
        Application(server, tmp_path / "work", protocol).count(text()[:1500], the_log_is_killed, parts=3)
    finally:
        server.close()


def read_for_ever(counts: Counts) -> None:
    while True:
        counts.read()


@pytest.mark.parametrize("wrong", [2, 4])
def test_a_number_that_comes_twice_is_seen_and_one_that_is_left_out(wrong: int):
    with mainstem.embedded() as log:
        log.create_topic("out", partitions=PARTITIONS)
        producer = Producer({"bootstrap.servers": log.bootstrap})
        for number in (1, 2, wrong):
            producer.produce("out", number.to_bytes(8, "big"), b"word", partition=0)
        producer.flush()
        counts = Counts(log.bootstrap, "out")
        try:
            with pytest.raises(AssertionError, match=f"'word' is counted {wrong} after 2"):
                read_for_ever(counts)
        finally:
            counts.close()


def test_the_list_names_every_test():
    expected = read_expected(SUITES["streams"].expected)
    names = {f"{protocol}/{happens.__name__}" for protocol in PROTOCOLS for happens in HAPPENINGS}
    assert {*expected.passed, *(name for each in expected.otherwise for name in each.tests)} == names
