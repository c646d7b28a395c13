import json

import msgspec
import pytest
from click.testing import CliRunner

from mainstem.cli import group
from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import COMMITS
from mainstem.client.progress import Marker, Written
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.core import UserError


@pytest.fixture(scope="module")
def log(cli_log):
    connection = Connection(cli_log)
    ensure_internal_topics(connection)
    ensure_topic(connection, "orders", 1)
    about = {
        "code": "c0de",
        "output": "totals",
        "inputs": {"o": "orders"},
        "determinism": "exact",
        "reason": "no state",
    }
    write_catalog(connection, {"job:totals": {"versions": {"1": about}, "current": "1"}})
    marker = Marker("totals", "1", "uuid", 4, {"o": {"orders": {0: 0}}}, {}, {"totals": {0: Written(3, 1)}})
    append(connection, COMMITS, [(b"totals@1", msgspec.json.encode(marker))])
    return cli_log


def test_jobs_are_listed_with_batch_and_lag(log):
    result = CliRunner().invoke(group, ["job", "list", "--bootstrap", log])
    assert result.stdout.splitlines()[1].split() == ["totals", "1", "yes", "orders", "totals", "4", "0", "3"]


def test_a_job_is_shown_with_the_code_it_runs_from(log):
    result = CliRunner().invoke(group, ["job", "show", "totals", "--bootstrap", log])
    for words in ("c0de", "orders as o", "exact: no state"):
        assert words in result.stdout
    document = json.loads(CliRunner().invoke(group, ["job", "show", "totals", "--json", "--bootstrap", log]).stdout)
    assert (document[0]["batch"], document[0]["lag"]) == (4, 0)


def test_a_job_that_never_ran_is_misuse(log):
    result = CliRunner().invoke(group, ["job", "show", "nothing", "--bootstrap", log])
    assert isinstance(result.exception, UserError)
