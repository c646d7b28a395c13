"""A splice that is killed between any two of its steps: what a plain consumer reads has each record once."""

import signal
import subprocess
import sys

import pytest

import mainstem
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics
from mainstem.log import LogConfig
from mainstem.process.splice import position_of
from tests.support.splices import compact, ends, move, place, records, table, write, write_job

STEPS = ["opened", "copied", "committed", "moving", "differed", "moved"]
COMMAND = """
import os, signal, sys, threading
from mainstem.client.connection import Connection
from mainstem.process import splice as module
from mainstem.process.splice import Splice

_, bootstrap, job, step, number = sys.argv
module.RECORDS_OF_A_TRANSACTION, module._PAUSE_SECONDS = 2, 0.01
left, stop = int(number), threading.Event()

def trace(name):
    global left
    left -= name == step
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

class Once(Splice):
    def step(self, writer, at):
        after = super().step(writer, at)
        if after is None:
            stop.set()
        return after

Once(f"{job}.all", job, Connection(bootstrap), trace=trace).run(stop)
"""
NUMBERS = iter(range(1000))


@pytest.fixture(scope="module", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def connection(request):
    log = request.getfixturevalue("mainstem_log" if request.param == "embedded" else "kafka_broker")
    return Connection(log.bootstrap)


def run(connection, job, step="", number=-1):
    """Run the splice until there is nothing to do, or it is killed at a step; whether it was."""
    command = [sys.executable, "-c", COMMAND, connection.bootstrap, job, step, str(number)]
    code = subprocess.run(command, check=False, timeout=60).returncode
    assert code in (0, -signal.SIGKILL)
    return code != 0


def killed_often(connection, job, step, between=lambda: None):
    """It is killed when it comes to a step for the first time, then for the second time, and so on."""
    number = 0
    while run(connection, job, step, number := number + 1):
        assert number < 20
        between()
    return number - 1


@pytest.mark.parametrize("step", STEPS)
def test_a_table_is_as_the_current_version_says_wherever_the_splice_was_killed(connection, step):
    job = f"table{next(NUMBERS)}"
    second = f"{job}.v2"
    write_job(connection, job, "changelog")
    write(connection, job, *((f"k{n}", n) for n in range(5)))
    write(connection, second, *((f"k{n}", n + n % 2) for n in range(2, 9)))
    kills = killed_often(connection, job, step)
    assert table(connection, f"{job}.all") == table(connection, job)
    move(connection, job, "2")
    kills += killed_often(connection, job, step)
    assert table(connection, f"{job}.all") == table(connection, second)
    changes = [("k0", None), ("k1", None), ("k3", 4), *((f"k{n}", n + n % 2) for n in range(5, 9))]
    assert records(connection, f"{job}.all") == [*records(connection, job), *changes]  # each once, in order
    assert kills >= 1
    assert place(position_of(connection, f"{job}.all")) == ("2", second, ends(connection, second)[second])


@pytest.mark.parametrize("step", ["committed", "differed"])
def test_a_table_is_as_the_current_version_says_where_logs_were_compacted_after_each_kill(step):
    """Both versions go on and lose what they have written anew, and so does the spliced topic."""
    job = f"compacted{next(NUMBERS)}"
    second, topic = f"{job}.v2", f"{job}.all"
    with mainstem.embedded(log=LogConfig(housekeeping_interval_ms=20)) as log:
        connection, keys = Connection(log.bootstrap), iter(range(100))
        ensure_internal_topics(connection)
        write_job(connection, job, "changelog")
        write(connection, job, *((f"k{n}", n) for n in range(8)))
        write(connection, second, ("k6", 6), ("k7", 8), ("k8", 8))
        assert not run(connection, job)
        move(connection, job, "2")

        def go_on():
            number = next(keys)
            write(connection, job, (f"k{number}", None if number % 2 else "again"))
            write(connection, second, ("k7", f"after {number}"))
            for each in (job, second, topic):
                compact(connection, each)

        assert killed_often(connection, job, step, go_on) >= 3
        assert table(connection, topic) == table(connection, second)


@pytest.mark.parametrize("step", [each for each in STEPS if each not in ("differed", "moved")])
def test_a_stream_has_each_record_once_wherever_the_splice_was_killed(connection, step):
    job = f"stream{next(NUMBERS)}"
    second = f"{job}.v2"
    write_job(connection, job, "stream")
    write(connection, job, *((f"k{n}", "one") for n in range(5)))
    kills = killed_often(connection, job, step)
    write(connection, second, *((f"k{n}", "two") for n in range(5)))
    move(connection, job, "2", at_one_position=True)
    write(connection, job, ("k5", "one"))
    write(connection, second, ("k5", "two"))
    kills += killed_often(connection, job, step)
    assert records(connection, f"{job}.all") == [*((f"k{n}", "one") for n in range(5)), ("k5", "two")]
    assert kills >= 1
