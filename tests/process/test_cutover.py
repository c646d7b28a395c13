"""Readers are moved to versions that have read as much, all at once or not at all."""

from contextlib import contextmanager

import pytest

from mainstem.client.append import append
from mainstem.client.basis import parse
from mainstem.client.catalog import current_versions, cutovers, read_catalog
from mainstem.client.catalog_changes import change_catalog
from mainstem.client.internal import CATALOG, COMMITS, job_key
from mainstem.client.topics import cluster_id, end_offsets
from mainstem.client.transaction import SharedTransaction
from mainstem.client.writer import TransactionalWriter
from mainstem.core import ManualClock, TopicPartition, UserError
from mainstem.core.locks import DirectoryLock
from mainstem.process import cutover as module
from mainstem.process import seam
from mainstem.process.cutover import NotReached, Overtaken, Waiting, check_revert, cutover, revert
from mainstem.process.landing import NotLanded
from mainstem.process.planting import Stand
from mainstem.process.readiness import look
from mainstem.process.retire import retire
from mainstem.process.seam import NoSeam
from mainstem.process.versions import RETIRED_FILE, Asked, Fixed, write_asked, write_fixed
from tests.support.splices import move, write_job
from tests.support.versions import write_read, write_versions


@pytest.fixture
def jobs(log_connection, request):
    """Two jobs that no other test has."""
    names = [f"{request.node.name[:40]}-{n}" for n in "ab"]
    for job in names:
        write_versions(log_connection, job)
    return names


def current(connection, *jobs):
    found = current_versions(read_catalog(connection))
    return [found[job] for job in jobs]


def test_readers_of_several_jobs_are_moved_together_and_back(log_connection, jobs, tmp_path):
    one, two = jobs
    for job in jobs:
        for version in "12":
            write_read(log_connection, job, version, 5)
    append(log_connection, f"{one}.v2", [(b"k", b"v")] * 3)
    done = cutover(log_connection, tmp_path, {one: "2", two: "2"}, Waiting(clock=ManualClock(77)))
    assert current(log_connection, one, two) == ["2", "2"]
    assert [(each.job, each.version, each.previous, each.output) for each in done.moves] == [
        (job, "2", "1", f"{job}.v2") for job in jobs
    ]
    found = cutovers(read_catalog(log_connection))
    assert found[one].at == done.moves[0].at == {"orders": {0: 5}, f"{one}.v2": {0: 3}}
    assert (found[one].since_ms, found[two].since_ms) == (77, 77)
    basis = parse(done.basis)
    assert (basis.log, basis.positions) == (
        cluster_id(log_connection),
        {CATALOG: {0: end_offsets(log_connection, CATALOG)[0] - 1}},  # after the record, before its transaction's end
    )
    write_read(log_connection, one, "2", 9)
    write_read(log_connection, one, "1", 9)
    (back,) = revert(log_connection, tmp_path, [one]).moves
    assert (back.version, back.previous, current(log_connection, one, two)) == ("1", "2", ["1", "2"])
    revert(log_connection, tmp_path, [one])  # forward again
    assert current(log_connection, one, two) == ["2", "2"]


def test_all_topics_of_a_job_are_moved_each_up_to_where_it_is(log_connection, jobs, tmp_path):
    job, other = jobs
    write_versions(log_connection, job, also=(f"{job}.state",))
    write_versions(log_connection, other, source=f"{job}.state")
    for version in "12":
        write_read(log_connection, job, version, 5)
        write_read(log_connection, other, version, 0, source=f"{job}.state")
    append(log_connection, f"{job}.v2", [(b"k", b"v")] * 3)
    append(log_connection, f"{job}.state.v2", [(b"k", b"v")] * 2)
    (move,) = cutover(log_connection, tmp_path, {job: "2"}).moves
    assert move.named == {job: f"{job}.v2", f"{job}.state": f"{job}.state.v2"}
    assert move.at == {"orders": {0: 5}, f"{job}.v2": {0: 3}, f"{job}.state.v2": {0: 2}}
    assert cutovers(read_catalog(log_connection))[job].at == move.at


def test_a_revert_that_is_to_lead_to_a_version_leads_nowhere_else(log_connection, jobs, tmp_path):
    """Of two who had seen that it leads to version 1 the second one moved readers away from there."""
    job, other = jobs
    for version in "12":
        write_read(log_connection, job, version, 5)
    cutover(log_connection, tmp_path, {job: "2"})
    check_revert(log_connection, {job: "1"})
    revert(log_connection, tmp_path, [job], to={job: "1"})
    for refused in (
        lambda: check_revert(log_connection, {job: "1"}),
        lambda: revert(log_connection, tmp_path, [job], to={job: "1"}),
    ):
        with pytest.raises(Overtaken, match=f"job {job}: expected that a revert leads to version 1, found version 2: "):
            refused()
    assert current(log_connection, job) == ["1"]
    with pytest.raises(Overtaken, match=r"expected that a revert leads to version 1, found no version to go back to"):
        check_revert(log_connection, {other: "1"})


def test_what_the_current_version_has_read_is_waited_for(log_connection, jobs, tmp_path):
    job, _ = jobs
    write_read(log_connection, job, "1", 2_000)
    write_read(log_connection, job, "2", 500)
    told, clock, steps = [], ManualClock(), iter([1_999, 2_000])

    def pause(seconds):
        assert current(log_connection, job) == ["1"]
        write_read(log_connection, job, "1", 9_000)  # what comes later does not matter
        write_read(log_connection, job, "2", next(steps))

    cutover(log_connection, tmp_path, {job: "2"}, Waiting(clock=clock, pause=pause, tell=told.append))
    assert told == [f"job {job}@2 has {count} offsets to go" for count in ("1,500", "1")]
    assert current(log_connection, job) == ["2"]
    clock.advance_ms(1)
    write_read(log_connection, job, "2", 9_001)
    with pytest.raises(NotReached, match=f"job {job}@1 has 1 offsets to go; nothing is changed$"):
        revert(log_connection, tmp_path, [job], Waiting(timeout_seconds=0, clock=clock))
    tries = Waiting(timeout_seconds=0, clock=clock, tried_again=lambda: {f"{job}@1": "ValueError: 4"})
    with pytest.raises(NotReached, match=r"@1 has 1 offsets to go \(its last try failed: ValueError: 4\); "):
        revert(log_connection, tmp_path, [job], tries)
    assert current(log_connection, job) == ["2"]


def test_windows_that_the_current_version_has_closed_are_waited_for(log_connection, jobs, tmp_path):
    job, _ = jobs
    write_versions(log_connection, job, windows_by="at")
    write_read(log_connection, job, "1", 10, event_time=90_000)
    write_read(log_connection, job, "2", 10, event_time=30_000)
    told = []

    def pause(seconds):
        write_read(log_connection, job, "2", 10, event_time=90_000)

    cutover(log_connection, tmp_path, {job: "2"}, Waiting(pause=pause, tell=told.append))
    assert told == [f"job {job}@2 has windows of 60 s to close"]
    write_read(log_connection, job, "1", 10)
    with pytest.raises(NotReached, match=f"job {job}@1 has closed no window yet; nothing is changed$"):
        cutover(log_connection, tmp_path, {job: "1"}, Waiting(timeout_seconds=0))
    write_read(log_connection, job, "1", 10, event_time=150_000)
    write_read(log_connection, job, "2", 10, event_time=210_000)
    with pytest.raises(NotReached, match=r"has windows of 60 s to close; nothing is changed$") as refused:
        cutover(log_connection, tmp_path, {job: "1"}, Waiting(timeout_seconds=0))
    assert refused.value.hint == (
        "later events close them, or a stated end of what it reads: `curl -X POST …/v1/topics/orders/end` of the "
        "gateway, and of a file source the file <path>.end; --timeout waits longer"
    )


def test_a_version_that_was_only_asked_for_is_waited_for(log_connection, jobs, tmp_path):
    job, _ = jobs
    write_asked(tmp_path / "jobs" / job_key(job, "3"), Asked(job, "3", "c0de", f"{job}.v3", 0))
    told = []

    def pause(seconds):
        write_versions(log_connection, job, ("1", "2", "3"))

    cutover(log_connection, tmp_path, {job: "3"}, Waiting(pause=pause, tell=told.append))
    assert told == [f"job {job}@3 has not started"]
    assert current(log_connection, job) == ["3"]


def test_a_version_that_was_retired_is_refused_at_once_also_where_its_directory_is_there(
    log_connection, jobs, tmp_path
):
    """It was waited for for ten minutes: the catalog has it no more, and its directory was taken for one to start."""
    job, _ = jobs
    for version in "12":
        fixed = Fixed(job, version, "c0de", {}, "x", 1, 4)
        write_fixed(tmp_path / "jobs" / job_key(job, version), fixed)
    cutover(log_connection, tmp_path, {job: "2"})
    retire(log_connection, tmp_path, job, "1", tmp_path / "gone", force=True)
    paused = Waiting(timeout_seconds=0)
    with pytest.raises(UserError, match=f"^job {job}@1 was retired, and never runs again$") as refused:
        cutover(log_connection, tmp_path, {job: "1"}, paused)
    assert refused.value.hint
    write_versions(log_connection, job, ("2", "3"))
    cutover(log_connection, tmp_path, {job: "3"})
    (tmp_path / "jobs" / job_key(job, "2") / RETIRED_FILE).touch()  # and was killed before it told the catalog
    with pytest.raises(UserError, match=f"^job {job}@2 was retired"):
        revert(log_connection, tmp_path, [job], paused)


def test_a_job_that_the_catalog_does_not_know_yet_has_no_readers_to_move(log_connection, jobs, tmp_path):
    """A driver was killed after it had bound the version, and before it told of it: KeyError."""
    job, _ = jobs
    change_catalog(log_connection, lambda _: {f"job:{job}": None})
    write_fixed(tmp_path / "jobs" / job_key(job, "1"), Fixed(job, "1", "c0de", {}, "x", 1, 4))
    with pytest.raises(UserError, match=f"^job {job}: expected a version that is current, found none") as refused:
        cutover(log_connection, tmp_path, {job: "1"}, Waiting(timeout_seconds=0))
    assert refused.value.hint == "the first version that starts is; `mainstem up` starts it"
    with pytest.raises(UserError, match="it was never cut over"):
        revert(log_connection, tmp_path, [job])


def test_who_is_interrupted_has_changed_nothing(log_connection, jobs, tmp_path):
    job, _ = jobs
    write_read(log_connection, job, "1", 1)

    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cutover(log_connection, tmp_path, {job: "2"}, Waiting(pause=interrupted))
    assert current(log_connection, job) == ["1"]


def test_readers_are_moved_to_no_version_that_has_failed_or_is_retired(log_connection, jobs, tmp_path):
    job, other = jobs
    failed = {job_key(job, "2"): "a row is bad (mend it)"}
    with pytest.raises(UserError, match=rf"job {job}@2 has failed: a row is bad \(mend it\)"):
        cutover(log_connection, tmp_path, {job: "2"}, Waiting(failed=lambda: failed))
    with pytest.raises(UserError, match="has never started"):
        cutover(log_connection, tmp_path, {job: "3"})
    with pytest.raises(UserError, match="was never cut over"):
        revert(log_connection, tmp_path, [job])
    home = tmp_path / "jobs" / job_key(job, "2")
    home.mkdir(parents=True)
    (home / RETIRED_FILE).touch()  # and was killed before it told the catalog
    with pytest.raises(UserError, match=f"^job {job}@2 was retired"):
        cutover(log_connection, tmp_path, {other: "2", job: "2"})
    assert current(log_connection, job, other) == ["1", "1"]


def test_of_two_that_move_one_job_the_second_is_refused_and_of_two_jobs_none_is_lost(
    log_connection, jobs, tmp_path, monkeypatch
):
    one, two = jobs
    write_versions(log_connection, one, ("1", "2", "3"))
    hold, others = module.hold_catalog, []

    def held(data):  # after another command, which was faster
        if others:
            others.pop()()
        return hold(data)

    monkeypatch.setattr(module, "hold_catalog", held)
    others.append(lambda: cutover(log_connection, tmp_path, {one: "2"}))
    with pytest.raises(Overtaken, match=f"job {one}: expected that version 1 is current still, found 2"):
        cutover(log_connection, tmp_path, {one: "3"})
    others.append(lambda: revert(log_connection, tmp_path, [one]))
    cutover(log_connection, tmp_path, {two: "2"})
    assert current(log_connection, one, two) == ["1", "2"]


def two_that_were_started(connection, data, job):
    """Versions 1 and 2 of a stream have read equally far; the first one has written three records."""
    write_job(connection, job, "stream")
    for version in "12":
        write_read(connection, job, version, 5)
        write_fixed(data / "jobs" / job_key(job, version), Fixed(job, version, "c0de", {}, "x", 1, 4))
    append(connection, job, [(b"k", b"v")] * 3)


def test_both_versions_of_a_spliced_stream_are_held_until_the_record_is_written(
    log_connection, jobs, tmp_path, monkeypatch
):
    job, second = jobs[0], f"{jobs[0]}.v2"
    two_that_were_started(log_connection, tmp_path, job)
    with pytest.raises(
        NoSeam, match=f"^jobs {job}@1 and {job}@2 do not run, and no batch of version 2 .* topic {job}.all is to have"
    ):
        cutover(log_connection, tmp_path, {job: "2"})
    held = []

    @contextmanager
    def hold(data, versions, **_):
        append(log_connection, second, [(b"k", b"v")] * 2)  # on the way to the position
        held.append(versions)
        stand = Stand(5 if len(held) < 3 else 4, {}, 0, 0, True)  # the batch that `write_read` gives
        yield {job: dict.fromkeys(versions[job], stand)}
        assert current(log_connection, job) == ["2" if len(held) == 1 else "1"]  # not before

    monkeypatch.setattr(seam, "held_at_one_position", hold)
    with DirectoryLock(tmp_path / "spark" / "c0de"):
        cutover(log_connection, tmp_path, {job: "2"})
        assert held == [{job: ("1", "2")}]
        assert cutovers(read_catalog(log_connection))[job].ends == {job: {0: 3}, second: {0: 2}}
        splice = TransactionalWriter(log_connection, f"splice:{job}.all")
        splice.open()
        at = {"version": "1", "output": job, "offsets": {"0": 3}}
        told = []
        for version in "01":
            splice.begin()
            splice.commit(at | {"version": version})
            if version == "0":
                with pytest.raises(
                    NotReached, match=f"topic {job}.all has not followed the last cutover of job {job};"
                ):
                    revert(log_connection, tmp_path, [job], Waiting(timeout_seconds=0, tell=told.append))
                assert told == [f"topic {job}.all has yet to follow the last cutover of job {job}"]
        splice.close()
        revert(log_connection, tmp_path, [job])
        assert cutovers(read_catalog(log_connection))[job].ends == {job: {0: 3}, second: {0: 4}}
        splice = TransactionalWriter(log_connection, f"splice:{job}.all")
        splice.open()
        splice.begin()
        splice.commit(at)
        splice.close()
        with pytest.raises(NotLanded, match=r"^version 1 was held for too long, and has gone on$"):
            cutover(log_connection, tmp_path, {job: "2"})  # stopped by Ctrl-Z for minutes
        assert current(log_connection, job) == ["1"]


def test_another_jobs_open_transaction_hides_no_batch_of_those_that_are_held(
    log_connection, jobs, tmp_path, monkeypatch
):
    """Its driver was killed in its commit: what was committed behind it was not seen, and taken for having gone on."""
    job, second = jobs[0], f"{jobs[0]}.v2"
    two_that_were_started(log_connection, tmp_path, job)
    killed = SharedTransaction(log_connection, f"mainstem.job.{job}-other@1", timeout_ms=2_000)
    killed.fence()

    @contextmanager
    def hold(data, versions, **_):
        with killed.writer(killed.begin()) as writer:
            writer.append(TopicPartition(COMMITS, 0), [b"other@1"], [b"{}"], None, 0)
            writer.finish()
        append(log_connection, second, [(b"k", b"v")] * 2)
        for version in "12":
            write_read(log_connection, job, version, 6)
        assert look(log_connection, decided=True).batch(job, "1") == 5
        yield {job: {version: Stand(6, {}, 0, 0, True) for version in versions[job]}}

    monkeypatch.setattr(seam, "held_at_one_position", hold)
    with DirectoryLock(tmp_path / "spark" / "c0de"):
        cutover(log_connection, tmp_path, {job: "2"})
    killed.close()
    assert cutovers(read_catalog(log_connection))[job].ends == {job: {0: 3}, second: {0: 2}}


def test_readers_go_back_to_the_version_that_a_spliced_stream_stands_at_though_nothing_fits(
    log_connection, jobs, tmp_path
):
    """What the splice told to do was refused after ten minutes: each move waited until it had followed."""
    job = jobs[0]
    write_job(log_connection, job, "stream")
    for version in "12":
        write_read(log_connection, job, version, 5)
    append(log_connection, job, [(b"k", b"v")] * 3)
    move(log_connection, job, "2")  # while no project had the splice
    splice = TransactionalWriter(log_connection, f"splice:{job}.all")
    splice.open()
    splice.begin()
    splice.commit({"version": "1", "output": job, "offsets": {"0": 1}})
    splice.close()
    revert(log_connection, tmp_path, [job], Waiting(timeout_seconds=0))
    assert current(log_connection, job) == ["1"]
    assert cutovers(read_catalog(log_connection))[job].ends == {}
    with pytest.raises(NoSeam):  # readers who pass from one version to the other
        cutover(log_connection, tmp_path, {job: "2"})


def test_a_cutover_is_given_up_while_versions_are_brought_to_one_position(log_connection, jobs, tmp_path):
    job = jobs[0]
    write_job(log_connection, job, "stream")
    for version in "12":
        write_read(log_connection, job, version, 5)
        write_fixed(tmp_path / "jobs" / job_key(job, version), Fixed(job, version, "c0de", {}, "x", 1, 4))

    class NoMore(Exception):
        pass

    def pause(seconds):
        raise NoMore

    with DirectoryLock(tmp_path / "spark" / "c0de"), pytest.raises(NoMore):  # a driver, which does not answer
        cutover(log_connection, tmp_path, {job: "2"}, Waiting(pause=pause))
    assert current(log_connection, job) == ["1"]


def test_nobody_is_held_for_a_spliced_table(log_connection, jobs, tmp_path):
    write_job(log_connection, jobs[0], "changelog")
    for version in "12":
        write_read(log_connection, jobs[0], version, 5)
    cutover(log_connection, tmp_path, {jobs[0]: "2"})
    assert cutovers(read_catalog(log_connection))[jobs[0]].ends == {}
