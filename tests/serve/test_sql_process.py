"""An SQL index in a process of its own: what a query may take, and what is left when the process is killed."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.core import UserError
from mainstem.serve import BadQuery, Change, IndexInUse, IndexUnavailable, OtherShape, sql_process
from mainstem.serve.columns import TableShape
from mainstem.serve.errors import IndexDamaged, UnfitChanges
from mainstem.serve.sql import SqlIndex
from mainstem.serve.sql_process import SqlProcess
from tests.serve.support import TOPIC, applied_after
from tests.serve.test_sql import TYPES
from tests.support.properties import examples
from tests.support.waiting import wait_until

STREAM = TableShape({"a": "INTEGER", "b": "VARCHAR"}, "stream")
ENDLESS = "SELECT sum(a.range * b.range % 7) FROM range(3000000) a, range(1000000) b"
DEAF = "SELECT levenshtein(repeat('a', 60000), repeat('b', 60000 + range::INT)) FROM range(2000)"
"""Nothing interrupts a function."""


@contextmanager
def opened(path: Path, **options):
    index = SqlProcess.open(path, {TOPIC: STREAM}, **options)
    try:
        yield index
    finally:
        index.close()


def fill(index, count=3):
    changes = [Change(TOPIC, 0, number, None, {"a": number, "b": "x"}) for number in range(count)]
    index.apply(changes, applied_after(changes))
    return applied_after(changes)


def count(index):
    return index.query(f"SELECT count(*) FROM {TOPIC}").rows[0][0]


def kill(index):
    os.kill(index._child.process.pid, signal.SIGKILL)
    index._child.wait()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('a', 1000000) FROM range(2000)",
        "SELECT repeat('a', 100000000) FROM range(2000)",
        "SELECT lpad('a', 100000000, 'b') || range FROM range(100)",
        "SELECT [repeat('a', 1000000) || x FOR x IN range(2000)]",
    ],
)
def test_no_query_takes_more_memory_than_it_may(tmp_path, monkeypatch, sql):
    """Strings of the rows in hand are not in the engine's books: 2 GB of 512 MB, in one step 200 GB."""
    monkeypatch.setattr(sql_process, "EXTRA_BYTES", 250 << 20)
    with opened(tmp_path, memory="100MB") as index:
        fill(index)
        pid, most, done = index._child.process.pid, [0], threading.Event()

        def look():
            while not done.wait(0.005):
                most[0] = max(most[0], sql_process._held(pid))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            with pytest.raises(BadQuery, match="memory") as failure:
                index.query(sql, limit=10, seconds=20)
        finally:
            done.set()
            watcher.join()
        assert failure.value.hint
        assert 0 < most[0] < 700 << 20
        assert count(index) == 3


def test_a_query_that_cannot_be_interrupted_ends_all_the_same_and_others_are_answered(tmp_path):
    with opened(tmp_path) as index, ThreadPoolExecutor(2) as threads:
        applied = fill(index)
        other = threads.submit(index.query, "SELECT sum(range % 7) FROM range(600000000)", seconds=60)
        began = monotonic()
        with pytest.raises(BadQuery, match=r"it took longer than 0\.2 s"):
            index.query(DEAF, seconds=0.2)
        assert monotonic() - began < 10
        assert index.applied == applied
        assert len(other.result(60).rows) == 1  # asked again
        assert index.failure is None


def test_a_process_that_ends_by_itself_is_told_once_and_there_again(tmp_path):
    with opened(tmp_path) as index, ThreadPoolExecutor(1) as threads:
        applied = fill(index)
        asked = threads.submit(index.query, ENDLESS, seconds=60)
        wait_until(lambda: index._child.is_asked, "it is asked")
        kill(index)
        with pytest.raises(IndexUnavailable, match="ended while it was asked"):
            asked.result(60)
        assert count(index) == 3
        assert index.applied == applied
        assert index.failure is None


@pytest.mark.parametrize("asking", [True, False])
def test_an_index_that_is_lost_while_its_process_is_killed_counts_as_damaged(tmp_path, asking):
    """One that is new in its place must not be taken for it."""
    with opened(tmp_path / "index") as index:
        applied = fill(index)
        shutil.rmtree(tmp_path / "index")
        kill(index)
        if asking:
            with pytest.raises(IndexUnavailable, match="not where it was"):
                count(index)
            assert isinstance(index.failure, IndexDamaged)
        else:
            with pytest.raises(IndexDamaged, match="not where it was"):
                index.apply([], applied)


def test_queries_that_end_the_process_do_not_keep_a_batch_from_being_applied(tmp_path, monkeypatch):
    """It is applied alone where it was not applied beside them; they wait so long."""
    changes = [Change(TOPIC, 0, number, None, {"a": number, "b": "x"}) for number in range(20_000)]
    with opened(tmp_path) as index, ThreadPoolExecutor(1) as threads:
        living, killed = index._living, []

        def killed_beside_a_query(**options):
            child = living(**options)
            if not options and not killed:  # the batch's: its first try
                killed.append(threads.submit(count, index))
                wait_until(lambda: child.is_asked or killed[0].done(), "a query is asked")
                child.kill(sql_process._TIME)
            elif not options:
                waiting = threads.submit(count, index)
                with pytest.raises(TimeoutError):
                    waiting.result(0.2)
                killed.append(waiting)
            return child

        monkeypatch.setattr(index, "_living", killed_beside_a_query)
        index.apply(changes, applied_after(changes))
        assert killed[-1].result(60) == len(changes)


@settings(max_examples=examples(3))
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "before", "while", "after"])), max_size=4))
def test_killed_at_any_moment_every_change_is_there_once(batches):
    with TemporaryDirectory() as directory, opened(Path(directory)) as index:
        done = []
        for size, moment in batches:
            new = [Change(TOPIC, 0, len(done) + each, None, {"a": each, "b": "x"}) for each in range(size)]
            done += new
            timer = threading.Timer(0.0005 * size, index._child.process.kill)
            if moment == "before":
                kill(index)
            elif moment == "while":
                timer.start()
            index.apply(new, applied_after(done))
            if moment == "while":
                timer.join()
            if moment == "after":
                kill(index)
            assert index.applied == applied_after(done)
            assert count(index) == len(done)
        index.extend({TOPIC: TableShape({"c": "INTEGER"}, "stream")})
        kill(index)
        done.append(Change(TOPIC, 0, len(done), None, {"c": 5}))
        index.apply(done[-1:], applied_after(done))
        assert index.query(f"SELECT c FROM {TOPIC} WHERE c IS NOT NULL").rows == [(5,)]


def test_values_of_all_types_come_back(tmp_path):
    columns = {name: kind for name, (kind, _) in TYPES.items()} | {"odd": "VARCHAR"}
    row = {name: value for name, (_, value) in TYPES.items()}
    changes = [
        Change(TOPIC, 0, 0, "", row | {"odd": 2**70}),
        Change(TOPIC, 0, 1, None, row | {"odd": [2**9000]}),
    ]
    with closing(SqlProcess.open(tmp_path, {TOPIC: TableShape(columns, "changelog")})) as index:
        index.apply(changes, applied_after(changes))
        found = index.query(f"SELECT _key, odd, COLUMNS(* EXCLUDE (_partition, _offset, _key, odd)) FROM {TOPIC}")
    told = [dict(zip(found.columns, each, strict=True)) for each in found.rows]
    assert told == [
        {"_key": "", "odd": str(2**70), **row},
        {"_key": None, "odd": f"[{2**9000}]", **row},
    ]


def test_errors_come_as_they_are(tmp_path):
    with opened(tmp_path / "i") as index:
        fill(index)
        with pytest.raises(IndexInUse):
            SqlIndex.open(tmp_path / "i", {TOPIC: STREAM})
        with pytest.raises(BadQuery, match="limit: expected 1 or more"):
            index.query("SELECT 1", limit=0)
        with pytest.raises(OtherShape, match="expected a column a VARCHAR"):
            index.extend({TOPIC: TableShape({"a": "VARCHAR"}, "stream")})
        bad = [Change(TOPIC, 0, 3, None, {"a": 1}), Change(TOPIC, 0, 4, None, {"a": "x"})]
        with pytest.raises(UnfitChanges) as failure:
            index.apply(bad, applied_after(bad))
        assert list(failure.value.reasons) == [1]
        assert count(index) == 3
    with pytest.raises(UserError, match="in SQL these are one name"):
        SqlProcess.open(tmp_path / "j", {"t": STREAM, "T": STREAM})
    with pytest.raises(IndexUnavailable, match="it is closed"):
        count(index)


def test_a_snapshot_is_an_index_of_its_own(tmp_path):
    with opened(tmp_path / "i") as index:
        applied = fill(index)
        index.snapshot(tmp_path / "s")
    with opened(tmp_path / "s") as copy:
        assert (copy.applied, count(copy)) == (applied, 3)


def test_it_is_closed_at_once_also_while_it_is_asked(tmp_path):
    with ThreadPoolExecutor(1) as threads:
        with opened(tmp_path) as index:
            pid = index._child.process.pid
            asked = threads.submit(index.query, ENDLESS, seconds=60)
            wait_until(lambda: index._child.is_asked, "it is asked")
            began = monotonic()
        with pytest.raises(IndexUnavailable):
            asked.result(60)
        assert monotonic() - began < 3
    assert not psutil.pid_exists(pid)


def test_an_engine_that_has_stopped_is_opened_again(tmp_path):
    with opened(tmp_path) as index:
        fill(index)
        index._child.kill(sql_process._STOPPED)
        assert count(index) == 3


PARENT = """
import sys, time
from pathlib import Path
from mainstem.serve.columns import TableShape
from mainstem.serve.sql_process import SqlProcess
index = SqlProcess.open(Path(sys.argv[1]), {"t": TableShape({"a": "INTEGER"}, "stream")})
print(index._child.process.pid, flush=True)
index.query(sys.argv[2], seconds=60)
"""


def test_it_ends_with_the_process_that_asks_it(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path), ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"
        parent.kill()
    child.wait(30)
    with opened(tmp_path):
        pass


def nested(levels):
    found = 1
    for _ in range(levels):
        found = [found]
    return found


def test_what_cannot_be_told_to_the_process_is_the_askers_error_and_ends_nothing(tmp_path):
    with opened(tmp_path) as index:
        fill(index)
        child = index._child
        with pytest.raises(BadQuery, match="the parameters cannot be told"):
            index.query("SELECT ?", [nested(50_000)], seconds=0.01)
        changes = [Change(TOPIC, 0, 3 + n, None, {"a": n, "b": nested(50_000) if n == 1 else "x"}) for n in range(3)]
        with pytest.raises(UnfitChanges) as unfit:
            index.apply(changes, applied_after(changes))
        assert list(unfit.value.reasons) == [1]
        assert not child._asked
        assert count(index) == 3
        assert index._child is child


def test_an_answer_that_cannot_be_told_is_the_askers_error_and_ends_nothing(tmp_path):
    with opened(tmp_path) as index:
        fill(index)
        child = index._child
        with pytest.raises(BadQuery, match="the answer cannot be told"):
            index.query(f"SELECT {'[' * 700}1{']' * 700}", seconds=30)
        assert count(index) == 3
        assert index._child is child


def test_files_at_which_the_engine_ends_its_process_count_as_damaged(tmp_path, monkeypatch):
    with opened(tmp_path) as index:
        fill(index)
        monkeypatch.setattr(sql_process._Child, "ask", lambda child, *_, **__: ended(child))
        kill(index)
        with pytest.raises(IndexDamaged, match="its process ended 3 times while it was opened"):
            index.apply([], applied_after([]))


def ended(child):
    child.process.kill()
    child.wait()
    raise sql_process._Ended("")
