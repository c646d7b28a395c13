"""The demo ends with one line where what it waits for cannot come; its proof misses nothing and saw what it claims."""

import argparse
import importlib
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psycopg2
import pyarrow
import pytest

import mainstem
from mainstem.client.connection import Connection
from mainstem.client.heartbeats import Statement, write_heartbeats
from mainstem.client.topics import ensure_internal_topics
from mainstem.core import MainstemError, UserError
from mainstem.core.locks import DirectoryLock
from mainstem.standalone.state import UpState, save
from mainstem.standalone.supervisor import ChildState
from tests.support.demo import DEMO
from tests.support.node import wait_for
from tests.support.processes import start

AT = {"type": "long", "logicalType": "timestamp-micros"}
COUNT = {"type": "record", "fields": [{"name": "topic", "type": "string"}, {"name": "event_count", "type": "long"}]}
TRANSACTION = [
    ("id", "string"), ("status", "string"), ("position", "long"), ("event_count", ["null", "long"]),
    ("tables", {"type": "array", "items": COUNT}), ("committed_at", AT),
]  # fmt: skip


@pytest.fixture(scope="module")
def imported():
    """The demo's own modules, which lie beside it."""
    names = ("waiting", "truth", "check", "stock", "watch", "faults", "demo")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(str(DEMO.parent))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in list(sys.modules):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(DEMO.parent)):
            del sys.modules[name]


@pytest.fixture
def modules(imported, monkeypatch):
    """The demo's own modules; nothing is waited for longer than half a second."""
    for name in ("waiting", "watch", "demo"):
        monkeypatch.setattr(getattr(imported, name), "LONGEST_WAIT_S", 0.5)
    return imported


@pytest.fixture
def handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def truth(imported, tmp_path_factory):
    """It is asked only: reading a year's flights takes as long as all tests with it."""
    data = imported.truth.data_files(tmp_path_factory.mktemp("truth"))
    return imported.truth.Truth(data, flights=50, before_changes=20)


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
            watch.wait("all windows are closed", lambda: 1, unit="jobs", check=fine, tell=told.append)
        assert told == ["  1 jobs left"]
        with pytest.raises(InterruptedError, match="mainstem up ended"):
            watch.wait("all windows are closed", lambda: 1, unit="jobs", check=ended)
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
            watch.wait("all windows are closed", lambda: 1, unit="jobs", check=fine)


def test_faults_end_when_a_process_does_not_come_back(modules, tmp_path):
    save(tmp_path, UpState(1, "p", "a", "b", time.time(), [ChildState("log", "waiting")]))
    for check, error in ((fine, modules.waiting.Stuck), (ended, InterruptedError)):
        faults = modules.faults.Faults(tmp_path, fine, fine, print, check)
        faults.start()
        with pytest.raises(error):
            faults.finish()


def test_a_process_is_killed_in_the_midst_of_its_work(modules, tmp_path, monkeypatch):
    monkeypatch.setattr(modules.waiting, "LONGEST_WAIT_S", 60)
    child, told, looks = start(["sleep", "600"]), [], iter([(5, 9), (5, 9), (6, 0), (6, 0), (6, 3), (6, 3), (8, 2)])

    def work(process):
        assert process == "log"
        assert child.poll() is None
        done, left = next(looks)
        return modules.faults.Work("events", done, lambda: left)

    save(tmp_path, UpState(1, "p", "a", "b", time.time(), [ChildState("log", "running", child.pid)]))
    faults = modules.faults.Faults(tmp_path, fine, work, told.append, fine)
    faults._kill("log", lambda: child.pid)  # not while nothing moves, and not when nothing is left
    assert told == [f"kill -9 {child.pid}: log; events moved by 2, 2 left"]
    assert child.wait() == -signal.SIGKILL


def test_input_comes_ever_more_slowly_while_processes_are_killed(modules, tmp_path):
    demo = new_demo(modules, tmp_path)
    demo.pause(1)  # nothing is killed
    waited = []
    demo.faults = SimpleNamespace(join=waited.append)
    for left in (100, 10, 1, 0):
        demo.pause(left)
    assert waited == [2, 20, 200, 200]


def test_a_new_table_that_comes_late_is_not_what_was_promised(modules, tmp_path):
    demo = new_demo(modules, tmp_path, new_table_seconds=30.0, bootstrap=None)
    demo.new_table_s = 12.3
    (line,) = demo.new_table()
    assert (line.name, line.gave, line.equal) == ("seconds until a new one, at most 30", 13, True)
    demo.new_table_s = 30.1
    (line,) = demo.new_table()
    assert (line.gave, line.truth, line.equal, line.note) == (31, 30, False, "it took 30.1 s")
    demo.faults = SimpleNamespace()  # processes are killed on purpose: it takes as long as it does
    assert demo.new_table() == []
    demo.faults, demo.options.bootstrap = None, "127.0.0.1:1"
    assert demo.new_table() == []


def new_demo(modules, work, **options):
    postgres = SimpleNamespace(create_database=lambda name: f"postgresql://127.0.0.1:1/{name}")
    return modules.demo.Demo(argparse.Namespace(work=work, **options), postgres)


def test_the_demo_notices_that_its_node_has_ended(modules, tmp_path):
    demo = new_demo(modules, tmp_path)
    demo.node = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    demo.node.wait()
    with pytest.raises(modules.waiting.Stuck, match=f"^mainstem up ended with exit code 2; its logs: {tmp_path}"):
        demo.check()
    demo.faults = SimpleNamespace(restarting=True)
    demo.check()  # it is being started again


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("no room", hint="make some"), 2, "demo: no room (make some)"),
        (MainstemError("no answer", hint="ask again"), 1, "demo: no answer (ask again)"),
        (
            psycopg2.OperationalError("closed\n\tunexpectedly\n"),
            1,
            "demo: the database: closed unexpectedly (its log: ",
        ),
    ],
)
def test_the_demo_ends_with_one_line_that_says_what_to_do(
    modules, tmp_path, monkeypatch, capsys, handlers, error, code, line
):
    """Hints were left out, and what the database said was a traceback."""

    def fail(*_):
        raise error

    monkeypatch.setattr(modules.demo, "LocalPostgres", fail)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--work", str(tmp_path)])
    assert modules.demo.main() == code
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(line)


def test_a_directory_with_something_else_is_left_alone(modules, tmp_path, monkeypatch, capsys, handlers):
    """The demo empties its directory at the start; the second time, what the first has left there is no mark of it."""
    (tmp_path / "precious").touch()
    monkeypatch.setattr(sys, "argv", ["demo.py", "--work", str(tmp_path)])
    for _ in range(2):
        assert modules.demo.main() == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert "expected a directory for the demo, found precious there; give another --work" in told
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_demo_that_is_kept_running_keeps_its_data(tmp_path):
    with DirectoryLock(tmp_path, ".flights_demo"):
        (tmp_path / "node").mkdir()
        command = [sys.executable, DEMO, "--work", tmp_path]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        (told,) = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (2, "")
        assert "a demo still runs there; end it, or give another --work" in told
    assert (tmp_path / "node").is_dir()


def test_a_transfer_that_fails_ends_the_demo(modules, tmp_path):
    dsn = "postgresql://127.0.0.1:1/fleet"
    transfers = modules.stock.Transfers(dsn, modules.stock.ReplicaReader(dsn), fine, print)
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


def test_every_column_of_a_table_is_compared(modules, truth):
    want = truth.want("flights", "SELECT * EXCLUDE (number, file_row) FROM flights")
    assert modules.check.compare("topic", "flights", 50, want.rows, want).equal
    for index, name in enumerate(want.rows.column_names):
        first, *values = want.rows.column(name).to_pylist()
        assert first is not None
        changed = pyarrow.array([None, *values], want.rows.column(name).type)
        line = modules.check.compare("topic", "flights", 50, want.rows.set_column(index, name, changed), want)
        assert not line.equal, name
        assert line.note.startswith("missing 1, e.g. (2013, 1, 1, "), line.note


def test_a_table_has_the_columns_and_the_types_that_are_expected(modules, truth):
    want = truth.want("parts_ewr", [("part 0", 7), ("part 1", 9)])

    def note(found):
        line = modules.check.compare("replica", "parts_ewr", 2, found, want)
        assert line.equal == (not line.note)
        return line.note

    part, quantity = want.rows.columns
    assert note(want.rows) == ""
    long = pyarrow.table({"part": part, "quantity": quantity.cast("int64")})
    assert note(long) == "columns missing: quantity INTEGER; extra: quantity BIGINT"
    assert note(want.rows.append_column("more", part)) == "columns missing: none; extra: more VARCHAR"
    assert note(want.rows.drop_columns("quantity")) == "columns missing: quantity INTEGER; extra: none"
    assert note(want.rows.select(["quantity", "part"])) == "columns in another order: quantity, part"
    assert note(pyarrow.concat_tables([want.rows, want.rows])).startswith("extra 2, e.g. ('part ")


def test_a_row_of_a_table_says_where_its_record_lies(modules, truth):
    want = truth.want("parts_ewr", [("part 0", 7), ("part 1", 9)])
    rows = [row | {"_key": row["part"], "_partition": 0, "_timestamp": 0} for row in want.rows.to_pylist()]
    schema = pyarrow.schema([*want.rows.schema, *modules.check.PLACE.items()])

    def placed(*offsets):
        given = [row | {"_offset": offset} for row, offset in zip(rows, offsets, strict=True)]
        return pyarrow.Table.from_pylist(given, schema)

    def lines(topic, table):
        return [line.equal for line in modules.check.compare_topic_and_table("fleet.parts_ewr", 2, topic, table, want)]

    assert lines(placed(3, 5), placed(3, 5)) == [True, True]
    assert lines(placed(3, 5), placed(3, 4)) == [True, False]


def test_a_node_that_does_not_stop_is_told_and_killed(modules, tmp_path, monkeypatch):
    """It was a traceback, and the node was left running."""
    monkeypatch.setattr(modules.demo, "STOP_S", 0.2)
    demo = new_demo(modules, tmp_path)
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); signal.pause()"
    with start([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as demo.node:
        demo.node.stdout.readline()
        with pytest.raises(modules.demo.Stuck, match=r"did not stop within 0.2 s; its logs: .*node/logs"):
            demo.stop()
        assert demo.node.wait(60) == -signal.SIGKILL


def test_what_went_into_a_topic_of_the_database_is_told(modules, truth, tmp_path, monkeypatch):
    """Its cell was empty."""
    demo = new_demo(modules, tmp_path)
    demo.sent.update({"flights": 50, "weather": 1})
    line = modules.check.Line
    monkeypatch.setattr(demo, "compare_topic", lambda name, took, _: [line("topic", name, took, 1, 1, True)] * 2)
    monkeypatch.setattr(demo, "compare_names", lambda: line("tables", "one for each topic", 1, 1, 1, True))
    monkeypatch.setattr(modules.demo, "database_table", lambda dsn, name: name)
    monkeypatch.setattr(modules.demo, "compare", lambda stage, name, took, *_: line(stage, name, took, 1, 1, True))
    lines = demo.compare(truth, modules.truth.access_lines()[:200], 2)
    assert [each.name for each in lines if each.took is None] == []
    went = {each.name.removeprefix("fleet."): each.took for each in lines if each.name.startswith("fleet.")}
    assert went.keys() == modules.truth.TABLES.keys() | {"transactions"}
    assert went["airlines"] == 16
    assert went["parts_ewr"] == modules.stock.PARTS + modules.stock.TRANSFERS
    assert went["planes"] > 3322 + 459 + 400


def test_transactions_are_compared_by_order_and_counts(modules, truth):
    made = modules.demo.transactions(truth)
    assert made[0] == {"airlines": 16, "airports": 1458, "planes": 3322, "parts_ewr": 20, "parts_jfk": 20}
    assert made[1:4] == [{"planes": 459}, {"planes": 400}, {"planes": 3}]
    assert len(made) == 1 + len(truth.changed) + modules.stock.TRANSFERS
    want = truth.want_transactions(made)

    def found(transactions):
        schema = pyarrow.schema([(name, modules.check.arrow_type(kind)) for name, kind in TRANSACTION])
        rows = []
        for number, counts in enumerate(transactions):
            tables = [{"topic": f"fleet.{table}", "event_count": count} for table, count in counts.items()]
            of = {"id": f"{number}", "position": 1000 + number, "committed_at": 0, "_offset": 2 * number}
            rows.append(of | {"status": "BEGIN", "tables": []})
            rows.append(
                of | {"status": "END", "tables": tables, "event_count": sum(counts.values()), "_offset": 2 * number + 1}
            )
        return pyarrow.Table.from_pylist(rows, pyarrow.schema([*schema, *modules.check.PLACE.items()]))

    def equal(transactions):
        want_placed = want._replace(columns=want.columns + modules.check.PLACE_COLUMNS)
        return modules.check.compare("topic", "fleet.transactions", 0, found(transactions), want_placed).equal

    assert equal(made)
    assert not equal(made[:-1])
    assert not equal([*made[:-1], {**made[-1], "planes": 1}])
    assert not equal([*made[:-1], {"parts_ewr": 1}])
    assert not equal([made[0], made[2], made[1], *made[3:]])


def test_what_is_kept_of_bad_events_is_compared(modules, truth):
    want = truth.want_quarantine(modules.demo.SPOILED)
    rows = [
        {"topic": "flights", "partition": -1, "offset": -1, "stage": "http", "error": error, "reason": "/year: text"}
        | {"value": value, "schema_id": 1, "at": 0}
        for value, error in modules.demo.SPOILED.items()
    ]
    kinds = {"topic": "string", "partition": "int", "offset": "long", "stage": "string", "error": "string"}
    kinds |= {"reason": "string", "key": ["null", "bytes"], "value": "bytes", "schema_id": "int", "at": AT}
    schema = pyarrow.schema([(name, modules.check.arrow_type(kind)) for name, kind in kinds.items()])

    def equal(**other):
        found = pyarrow.Table.from_pylist([rows[0], rows[1] | other], schema)
        return modules.check.compare("table", "flights.quarantine", 2, found, want).equal

    assert equal()
    assert not equal(value=b'{"year": 2013}')
    assert not equal(error="not_json")
    assert not equal(reason="")
    assert not equal(topic="weather")
