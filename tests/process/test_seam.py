"""Where consumers of a spliced stream pass from one version to the other when the old one does not run any more."""

import threading

import msgspec
import pytest

from mainstem.client.append import append
from mainstem.client.catalog import read_catalog, write_catalog
from mainstem.client.internal import PROGRESS, job_key
from mainstem.client.progress import Progress
from mainstem.core import UserError
from mainstem.core.locks import DirectoryLock
from mainstem.process import readiness
from mainstem.process import splice as splice_module
from mainstem.process.cutover import Waiting, cutover
from mainstem.process.landing import Lander, NotLanded
from mainstem.process.readiness import look
from mainstem.process.retire import retire
from mainstem.process.seam import NoSeam, held_seams, spliced_streams
from mainstem.process.splice import Splice, position_of
from mainstem.process.versions import Fixed, write_fixed
from tests.support.splices import place, records, write, write_job
from tests.support.versions import write_batch, write_read, write_versions
from tests.support.waiting import wait_until

NUMBERS = iter(range(1000))


@pytest.fixture
def job(log_connection, tmp_path):
    """A spliced stream; version 1 stopped behind its input 5, of which it has made 5 records."""
    name = f"seam{next(NUMBERS)}"
    write_job(log_connection, name, "stream")
    for version in "12":
        write_fixed(tmp_path / "jobs" / job_key(name, version), Fixed(name, version, "c0de", {}, "x", 1, 4))
    append(log_connection, name, [(b"k%d" % n, b"one") for n in range(5)])
    append(log_connection, f"{name}.v2", [(b"k%d" % n, b"two") for n in range(8)])
    write_read(log_connection, name, "1", 5)
    write_read(log_connection, name, "2", 8)
    return name


def batches(connection, job, *ends):
    """Version 2 makes a record of each input; its batches end there."""
    for number, end in enumerate(ends):
        write_batch(connection, job, "2", number, end, end)


def seam(connection, data, job, **options):
    with held_seams(connection, data, look(connection), {job: "2"}, **options) as seams:
        return seams[job]


@pytest.mark.parametrize("ends", [(5, 8), (2, 5, 5, 8), (3, 5)])
def test_a_batch_that_ends_where_the_old_version_stopped_is_the_seam(log_connection, tmp_path, job, ends):
    batches(log_connection, job, *ends)
    found = seam(log_connection, tmp_path, job)
    assert (found.ends, found.repeated) == ({job: {0: 5}, f"{job}.v2": {0: 5}}, 0)
    assert found.batches == {"1": 5}  # `write_read` numbers it so


def test_a_version_whose_rows_are_not_bound_to_batches_has_no_seam(log_connection, tmp_path, job):
    batches(log_connection, job, 5, 8)
    entry = read_catalog(log_connection)[f"job:{job}"]
    entry["versions"]["2"]["guarantee"] = "at least once: the rows of up to 5 seconds come again"
    write_catalog(log_connection, {f"job:{job}": entry})
    for at_least_once in (False, True):
        with pytest.raises(UserError, match=rf'^job {job}@2: latency="realtime": expected a version that a splice'):
            seam(log_connection, tmp_path, job, at_least_once=at_least_once)


def test_a_batch_of_the_old_version_that_comes_meanwhile_is_not_before_the_seam(
    log_connection, tmp_path, job, monkeypatch
):
    batches(log_connection, job, 5, 8)
    write_read(log_connection, job, "1", 5, ends={job: {0: 5}})
    real = readiness.stable_offsets

    def ends(connection, topics):  # after the markers were read: it was started again
        write(connection, job, ("later", "one"))
        return real(connection, topics)

    monkeypatch.setattr(readiness, "stable_offsets", ends)
    assert seam(log_connection, tmp_path, job).ends[job] == {0: 5}
    write_read(log_connection, job, "1", 5)  # as it was before batches said where they ended

    def later(connection, topics):
        write_read(connection, job, "1", 6)
        return real(connection, topics)

    now = look(log_connection)
    monkeypatch.setattr(readiness, "stable_offsets", later)
    with (
        pytest.raises(NotLanded, match=f"job {job}: a version went on while its output was asked for its end"),
        held_seams(log_connection, tmp_path, now, {job: "2"}),
    ):
        pass


@pytest.mark.parametrize("running", ["1", "2"])
def test_the_version_that_does_not_run_is_told(log_connection, tmp_path, job, running):
    write_fixed(tmp_path / "jobs" / job_key(job, running), Fixed(job, running, "0ther", {}, "x", 1, 4))
    stopped = {"1": "2", "2": "1"}[running]
    batches(log_connection, job, 3, 8)
    with (
        DirectoryLock(tmp_path / "spark" / "0ther"),
        pytest.raises(NoSeam, match=f"^job {job}@{stopped} does not run, and no batch of version 2 ends") as error,
    ):
        seam(log_connection, tmp_path, job)
    assert ("--at-least-once" in error.value.hint) == (stopped == "1")
    assert f"{job}@{stopped}" in error.value.hint


@pytest.mark.parametrize(("ends", "start", "repeated"), [((2, 4, 7, 8), 4, 3), ((8,), 0, 8), ((3, 8), 3, 5)])
def test_without_one_the_batch_before_is_taken_where_that_is_wanted(
    log_connection, tmp_path, job, ends, start, repeated
):
    batches(log_connection, job, *ends)
    with pytest.raises(NoSeam, match=f"jobs {job}@1 and {job}@2 do not run, and no batch of version 2 ends") as error:
        seam(log_connection, tmp_path, job)
    assert "--at-least-once" in error.value.hint
    found = seam(log_connection, tmp_path, job, at_least_once=True)
    assert (found.ends[f"{job}.v2"], found.repeated) == ({0: start}, repeated)


def test_batches_that_say_where_they_wrote_alone_are_put_together(log_connection, tmp_path, job):
    """As they were before each said where all of its output ends."""
    for number, (position, ends) in enumerate([(3, {0: 3}), (5, {})]):
        progress = Progress(job, "2", number, {"orders": {0: position}}, {}, {f"{job}.v2": ends})
        append(log_connection, PROGRESS, [(job_key(job, "2").encode(), msgspec.json.encode(progress))])
    found = seam(log_connection, tmp_path, job)
    assert (found.ends[f"{job}.v2"], found.repeated) == ({0: 3}, 0)


def test_a_version_that_has_read_nothing_gives_way_at_the_start(log_connection, tmp_path):
    job = f"seam{next(NUMBERS)}"
    write_job(log_connection, job, "stream")
    batches(log_connection, job, 3)
    assert seam(log_connection, tmp_path, job).ends == {job: {0: 0}, f"{job}.v2": {0: 0}}


def test_windows_that_are_open_cannot_be_passed_on(log_connection, tmp_path, job):
    batches(log_connection, job, 5)
    write_versions(log_connection, job, windows_by="at")
    with pytest.raises(NoSeam, match="has windows open"):
        seam(log_connection, tmp_path, job, at_least_once=True)


def test_a_driver_that_cannot_run_the_old_version_counts_as_none_where_that_is_wanted(log_connection, tmp_path, job):
    batches(log_connection, job, 4, 8)
    done = threading.Event()

    def drive():
        landers = [Lander(tmp_path, tmp_path / "jobs" / job_key(job, version)) for version in "12"]
        while not done.wait(0.01):
            for lander in landers:
                lander.refuse("cast of a word to a number")

    thread = threading.Thread(target=drive)
    with DirectoryLock(tmp_path / "spark" / "c0de"):
        thread.start()
        try:
            with pytest.raises(NotLanded, match=f"does not run: cast of a word to a number; topic {job}.all") as error:
                seam(log_connection, tmp_path, job)
            assert "--at-least-once" in error.value.hint
            assert seam(log_connection, tmp_path, job, at_least_once=True).ends[f"{job}.v2"] == {0: 4}
        finally:
            done.set()
            thread.join()


def test_a_plain_consumer_goes_on_there(log_connection, tmp_path, job, monkeypatch):
    monkeypatch.setattr(splice_module, "_PAUSE_SECONDS", 0.01)
    stop, told = threading.Event(), []
    splice = Splice(f"{job}.all", job, log_connection)
    splice.on_idle = lambda *_: None
    running = threading.Thread(target=splice.run, args=(stop,))
    batches(log_connection, job, 4, 8)
    running.start()
    try:
        wait_until(
            lambda: place(position_of(log_connection, splice.name)) == ("1", job, {0: 5}), "it has all of version 1"
        )
        with pytest.raises(UserError, match=r"is current, and topic .* is spliced from it"):
            retire(log_connection, tmp_path, job, "1", tmp_path, force=True)
        cutover(log_connection, tmp_path, {job: "2"}, Waiting(tell=told.append), at_least_once=True)
        write(log_connection, job, ("late", "one"))  # of the version that readers have left
        wait_until(lambda: len(records(log_connection, splice.name)) >= 9, "it goes on with version 2")
    finally:
        stop.set()
        running.join()
    expected = [*((f"k{n}", "one") for n in range(5)), *((f"k{n}", "two") for n in range(4, 8))]
    assert records(log_connection, splice.name) == expected
    assert told == [f"job {job}: plain consumers read up to 4 records twice"]
    retire(log_connection, tmp_path, job, "1", tmp_path, force=True)


def test_tables_have_no_seam(log_connection):
    job = f"seam{next(NUMBERS)}"
    write_job(log_connection, job, "changelog")
    assert spliced_streams(read_catalog(log_connection), [job]) == []
