import json
import math
import time

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition

from mainstem.cli.commands import group
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.topics import admin, end_offsets, ensure_internal_topics, ensure_topic
from mainstem.core import CorruptData, UserError
from mainstem.registry.avro import encode
from mainstem.registry.reader import TypedReader
from tests.support.commands import mainstem
from tests.support.undecided import VISIBLE, undecided


@pytest.fixture(scope="module")
def log(cli_log):
    connection = Connection(cli_log)
    ensure_internal_topics(connection)
    ensure_topic(connection, "words", 1)
    append(connection, "words", [(b"a", b'{"n": 1}'), (None, b"text"), (b"a", None)])
    return cli_log


def tail(*arguments):
    return CliRunner().invoke(group, ["tail", "words", *arguments])


def test_records_are_printed_decoded(log):
    result = tail("--from", "earliest", "--no-follow", "--bootstrap", log)
    assert result.stdout.splitlines() == ['0:0  a  {"n":1}', '0:1  -  "text"', "0:2  a  deleted"]


@pytest.mark.parametrize("append_time", [False, True])
def test_the_time_of_a_record_is_its_producers_unless_the_topic_says_otherwise(log, append_time):
    """It was "of its append"."""
    topic = f"dated-{append_time}"
    settings = {"message.timestamp.type": "LogAppendTime"} if append_time else {}
    ensure_topic(Connection(log), topic, 1, settings)
    producer = Producer(Connection(log).confluent())
    recently_ms = int(time.time() * 1000) - 60_000  # retention takes what is older than a week
    producer.produce(topic, b"x", timestamp=recently_ms)
    producer.flush(60)
    told = mainstem("tail", topic, "--from", "earliest", "--no-follow", "--json", "--bootstrap", log)
    assert (json.loads(told.stdout)["timestamp"] == recently_ms) == (not append_time)


def test_an_offset_and_a_count_bound_what_is_printed(log):
    result = tail("--from", "1", "-n", "1", "--json", "--bootstrap", log)
    record = json.loads(result.stdout)
    assert (record["partition"], record["offset"], record["value"]) == (0, 1, "text")


def test_an_offset_before_the_start_of_the_log_means_what_is_left(log):
    connection = Connection(log)
    ensure_topic(connection, "cut", 1)
    append(connection, "cut", [(None, b"%d" % n) for n in range(8)])
    client, partition = admin(connection), TopicPartition("cut", 0, 4)
    client.delete_records([partition])[partition].result()
    for start, expected in [("0", [4, 5, 6, 7]), ("6", [6, 7]), ("earliest", [4, 5, 6, 7]), ("100", [])]:
        command = ["tail", "cut", "--from", start, "--no-follow", "--json", "--bootstrap", log]
        done = mainstem(*command)
        assert (start, [json.loads(line)["value"] for line in done.stdout.splitlines()]) == (start, expected)


def test_a_record_is_one_line_that_leaves_the_terminal_as_it_is(log):
    """A key that somebody else chose made two lines, and turned the terminal red."""
    connection = Connection(log)
    ensure_topic(connection, "red", 1)
    append(connection, "red", [(b"k\n\x1b[31mred", '"\x9b31m \u202e\u00e9"'.encode())])
    command = ["tail", "red", "--from", "earliest", "--no-follow", "--bootstrap", log]
    assert mainstem(*command).stdout == '0:0  k\\n\\u001b[31mred  "\\u009b31m \\u202e\u00e9"\n'
    document = json.loads(mainstem(*command, "--json").stdout)
    assert (document["key"], document["value"]) == ("k\n\x1b[31mred", "\x9b31m \u202e\u00e9")


def test_without_follow_it_ends_where_a_transaction_is_open_and_says_so(log):
    """It waited for as long as the transaction was open, and said nothing."""
    connection = Connection(log)
    ensure_topic(connection, "open", 1)
    command = ["tail", "open", "--from", "earliest", "--no-follow", "--bootstrap", log]
    with undecided(connection, "open", lambda word: [("open", None, word.encode())]):
        first = end_offsets(connection, "open", committed=True)[0]
        done, bounded = mainstem(*command), mainstem(*command, "-n", "2")
    for each in (done, bounded):
        assert [json.loads(line.split()[2]) for line in each.stdout.splitlines()] == list(VISIBLE)
    assert done.stderr == (
        f"topic open, partition 0: a transaction is open from offset {first}: what follows is not shown\n"
    )
    assert (done.returncode, bounded.returncode, bounded.stderr) == (0, 0, "")


def test_a_value_that_cannot_be_decoded_is_printed_with_the_reason_and_the_rest_follows(log):
    connection = Connection(log)
    ensure_topic(connection, "odd", 1)
    append(connection, "odd", [(b"a", b"\0\0\0\0\x63odd"), (b"b", b"1")])
    command = ["tail", "odd", "--from", "earliest", "--no-follow", "--bootstrap", log]
    odd, good = mainstem(*command).stdout.splitlines()
    assert odd.startswith('0:0  a  "AAAAAGNvZGQ="  (not decoded: expected schema 99 in _schemas, found none')
    assert good == "0:1  b  1"
    record = json.loads(mainstem(*command, "--json").stdout.splitlines()[0])
    assert record["undecoded"].startswith("expected schema 99")
    with pytest.raises(CorruptData), TypedReader(connection, "odd") as reader:
        list(reader)


def test_numbers_that_json_does_not_have_are_texts(log):
    """They were null, as if there were none."""
    connection, key = Connection(log), b'{"keytype":"SCHEMA","subject":"numbers-value","version":1,"magic":1}'
    doubles = {"name": "x", "type": {"type": "array", "items": "double"}}
    schema = json.dumps({"type": "record", "name": "numbers", "fields": [doubles]})
    said = {"subject": "numbers-value", "version": 1, "id": 7, "schema": schema}
    append(connection, SCHEMAS, [(key, json.dumps(said).encode())])
    ensure_topic(connection, "numbers", 1)
    append(connection, "numbers", [(b"a", encode(7, schema, {"x": [math.inf, -math.inf, math.nan, 1.5]}))])
    command = ["tail", "numbers", "--from", "earliest", "--no-follow", "--bootstrap", log]
    assert mainstem(*command).stdout == '0:0  a  {"x":["Infinity","-Infinity","NaN",1.5]}\n'
    assert json.loads(mainstem(*command, "--json").stdout)["value"] == {"x": ["Infinity", "-Infinity", "NaN", 1.5]}


@pytest.mark.parametrize("start", ["yesterday", "²", "9" * 5000])
def test_a_start_that_is_none_is_refused(log, start):
    result = tail("--from", start, "--bootstrap", log)
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == f"--from: expected earliest, end or an offset, found {start[:40]!r}"


def test_an_offset_far_behind_the_end_is_one_without_records(log):
    assert tail("--from", "9" * 18, "--no-follow", "--bootstrap", log).stdout == ""
