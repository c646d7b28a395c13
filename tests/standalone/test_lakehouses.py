"""Who may write the tables of a lakehouse, and what is said to who may not."""

import pytest

from mainstem.client.topics import is_topic_name
from mainstem.core import ManualClock
from mainstem.core.locks import DirectoryLock
from mainstem.core.task import TaskState
from mainstem.standalone.lakehouses import LOCK, LockedLakehouse, WithViews


class Keeper:
    """What is called, in order."""

    def __init__(self, error=None):
        self.calls, self.error = [], error
        self.states = [TaskState("sink lake"), TaskState("sink lake: table orders", "failed")]

    def start(self):
        self.calls.append("start")

    def step(self):
        self.calls.append("step")

    def stop(self):
        self.calls.append("stop")
        if self.error is not None:
            raise self.error


def test_two_that_write_the_same_tables_take_turns(tmp_path):
    """Both appended every record: the rows of all tables were there twice."""
    clock, first, second = ManualClock(), Keeper(), Keeper()
    tables = tmp_path / "tables"
    link = tmp_path / "link"
    link.symlink_to(tables)
    one, two = LockedLakehouse("lake", tables, first, clock=clock), LockedLakehouse("lake", link, second, clock=clock)
    one.start()
    two.start()
    (state,) = two.states
    assert (state.name, state.state, state.needs_a_person) == ("sink lake", "failed", True)
    assert f"{link}: in use by process " in state.error
    assert state.hint == "stop that process, or give [sinks.lake] a `path` of its own"
    for _ in range(2):
        one.step()
        two.step()
    assert (first.calls, second.calls, one.states) == (["start", "step", "step"], [], first.states)

    one.stop()
    clock.advance_ms(round(state.retry_seconds * 1000))
    two.step()
    two.step()
    two.stop()
    assert (first.calls[3:], second.calls, two.states[0].state) == (["stop"], ["start", "step", "stop"], "stopped")


def test_the_tables_are_free_also_where_the_lakehouse_does_not_stop_well(tmp_path):
    lakehouse = LockedLakehouse("lake", tmp_path, Keeper(OSError("no answer")))
    lakehouse.start()
    with pytest.raises(OSError, match="no answer"):
        lakehouse.stop()
    DirectoryLock(tmp_path, LOCK).release()


def test_a_directory_that_cannot_be_made_lags_only_this_sink(tmp_path):
    (tmp_path / "file").write_text("")
    clock, keeper = ManualClock(), Keeper()
    lakehouse = LockedLakehouse("lake", tmp_path / "file" / "tables", keeper, clock=clock)
    lakehouse.start()
    (state,) = lakehouse.states
    assert state.error.startswith(f"{tmp_path}/file/tables: expected a directory to write to")
    assert state.hint == "make it writable, or give [sinks.lake] a `path` of its own"
    (tmp_path / "file").unlink()
    clock.advance_ms(round(state.retry_seconds * 1000))
    lakehouse.step()
    assert (keeper.calls, lakehouse.states) == (["start"], keeper.states)
    lakehouse.stop()


def test_the_lock_is_never_taken_for_a_table():
    assert not is_topic_name(LOCK)


def test_who_keeps_the_tables_keeps_their_views():
    lakehouse, views = Keeper(), Keeper()
    both = WithViews(lakehouse, views)
    both.start()
    both.step()
    both.stop()
    assert (lakehouse.calls, views.calls) == (["start", "step", "stop"], ["start", "stop"])  # the views have a thread
    assert both.states == [*lakehouse.states, *views.states]
