import json

import pytest
from click.testing import CliRunner

from mainstem.cli import group
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_topic
from mainstem.core import UserError


@pytest.fixture(scope="module")
def log(cli_log):
    connection = Connection(cli_log)
    ensure_topic(connection, "words", 1)
    append(connection, "words", [(b"a", b'{"n": 1}'), (None, b"text"), (b"a", None)])
    return cli_log


def tail(*arguments):
    return CliRunner().invoke(group, ["tail", "words", *arguments])


def test_records_are_printed_decoded(log):
    result = tail("--from", "earliest", "--no-follow", "--bootstrap", log)
    assert result.stdout.splitlines() == ['0:0  a  {"n":1}', '0:1  -  "text"', "0:2  a  deleted"]


def test_an_offset_and_a_count_bound_what_is_printed(log):
    result = tail("--from", "1", "-n", "1", "--json", "--bootstrap", log)
    record = json.loads(result.stdout)
    assert (record["partition"], record["offset"], record["value"]) == (0, 1, "text")


def test_a_start_that_is_none_is_refused(log):
    result = tail("--from", "yesterday", "--bootstrap", log)
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == "--from: expected earliest, end or an offset, found 'yesterday'"
