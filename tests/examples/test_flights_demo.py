"""The demo ends with one line where what it waits for cannot come, and its proof needs what it claims to have seen."""

import argparse
import importlib
import subprocess
import sys
import time
from types import SimpleNamespace

import psycopg2
import pytest

import mainstem
from mainstem.client.connection import Connection
from mainstem.client.heartbeats import Statement, write_heartbeats
from mainstem.client.topics import ensure_internal_topics
from mainstem.standalone.state import UpState, save
from mainstem.standalone.supervisor import ChildState
from tests.support.demo import DEMO
from tests.support.node import wait_for


@pytest.fixture
def modules(monkeypatch):
    """The demo's own modules, which lie beside it; nothing is waited for longer than half a second."""
    monkeypatch.syspath_prepend(str(DEMO.parent))
    names = ("waiting", "stock", "watch", "faults", "demo")
    loaded = SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in ("waiting", "watch", "demo"):
        monkeypatch.setattr(getattr(loaded, name), "LONGEST_WAIT_S", 0.5)
    yield loaded
    for name in list(sys.modules):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(DEMO.parent)):
            del sys.modules[name]


def fine():
    pass


def ended():
    raise InterruptedError("mainstem up ended")


def test_a_wait_ends_when_nothing_comes_and_when_nothing_can(modules):
    with pytest.raises(modules.waiting.Stuck, match="the tables are full: not within 0 s"):
        modules.waiting.until("the tables are full", lambda: False, fine)
    with pytest.raises(InterruptedError, match="mainstem up ended"):
        modules.waiting.until("the tables are full", lambda: False, ended)


def test_a_watch_tells_what_is_left_and_ends_when_nothing_moves_or_can(modules, monkeypatch):
    with mainstem.embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_internal_topics(connection)
        watch, told = modules.watch.Watch(connection), []
        monkeypatch.setattr(modules.watch, "TELL_EVERY_S", 0)
        with pytest.raises(modules.waiting.Stuck, match="all windows are closed: nothing has moved for"):
            watch.wait("all windows are closed", lambda: 1, check=fine, tell=told.append)
        assert told == ["  1 left"]
        with pytest.raises(InterruptedError, match="mainstem up ended"):
            watch.wait("all windows are closed", lambda: 1, check=ended)
        write_heartbeats(connection, [Statement("flights", {0: 1}, 0), Statement("hours", {0: 1}, 0, end=True)])
        wait_for(lambda: watch.ended)
        assert watch.ended == {"hours"}
        watch.readers[("lakehouse", "flights")] = {0: 7, 1: 3}
        # One offset of partition 1, one of partition 2; what is beyond the target makes up for nothing.
        assert watch.unread("lakehouse", {"flights": {0: 5, 1: 4, 2: 1}}) == 2


def test_what_ends_a_thread_of_the_watch_ends_the_wait(modules):
    with mainstem.embedded() as log:
        watch = modules.watch.Watch(Connection(log.bootstrap))  # of topics that are not there
        with pytest.raises(Exception, match="__mainstem"):
            watch.wait("all windows are closed", lambda: 1, check=fine)


def test_faults_end_when_a_process_does_not_come_back(modules, tmp_path):
    save(tmp_path, UpState(1, "p", "a", "b", time.time(), [ChildState("log", "waiting")]))
    for check, error in ((fine, modules.waiting.Stuck), (ended, InterruptedError)):
        faults = modules.faults.Faults(tmp_path, fine, print, check)
        faults.start()
        with pytest.raises(error):
            faults.finish()


def test_the_demo_notices_that_its_node_has_ended(modules, tmp_path):
    postgres = SimpleNamespace(create_database=lambda name: f"postgresql://127.0.0.1:1/{name}")
    demo = modules.demo.Demo(argparse.Namespace(work=tmp_path), postgres)
    demo.node = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    demo.node.wait()
    with pytest.raises(modules.waiting.Stuck, match=f"^mainstem up ended with exit code 2; its logs: {tmp_path}"):
        demo.check()
    demo.faults = SimpleNamespace(restarting=True)
    demo.check()  # it is being started again


def test_a_transfer_that_fails_ends_the_demo(modules, tmp_path):
    dsn = "postgresql://127.0.0.1:1/fleet"
    transfers = modules.stock.Transfers(dsn, modules.stock.ReplicaReader(dsn), fine)
    transfers.start()
    with pytest.raises(psycopg2.OperationalError):
        transfers.finish()
    assert transfers.made == 0


def test_transfers_move_parts_and_lose_none(modules):
    stock = modules.stock
    states = [stock.sums(count) for count in range(stock.TRANSFERS + 1)]
    assert {sum(each) for each in states} == {2 * stock.PARTS * stock.EACH}
    assert stock.stock(0) != stock.stock()
    assert stock.sums(stock.TRANSFERS // 2) not in (states[0], states[-1])  # the second half waits until it is seen


def test_the_proof_needs_reads_in_the_midst_of_the_transfers(modules):
    stock = modules.stock

    def line(*seen):
        reader = stock.ReplicaReader("")
        reader.seen.update(seen)
        return reader.line()

    first, middle, last = stock.sums(0), stock.sums(stock.TRANSFERS // 2), stock.sums(stock.TRANSFERS)
    assert line(first, middle, last).equal
    assert not line(first, last).equal
    half = (middle[0] - 1, middle[1])
    assert (line(first, middle, half, last).gave, line(first, middle, half, last).equal) == (1, False)
