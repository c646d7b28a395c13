"""The protocol of one batch, step by step; killed at every one of them: tests/crash/test_sink_protocol.py."""

import json
import threading
import time
import traceback
import uuid

import msgspec
import pytest

from mainstem.client import Connection, reader
from mainstem.client.append import append
from mainstem.client.errors import Fenced, IdentityLost, TookTooLong, TransactionFailed
from mainstem.client.internal import COMMITS, PROGRESS, job_key
from mainstem.client.progress import Output, Progress, Written, read_marker
from mainstem.client.topics import end_offsets, ensure_internal_topics, ensure_topic
from mainstem.client.transaction import TransactionWriter
from mainstem.core import TopicPartition
from mainstem.core.clock import since_boot
from mainstem.process.sink_claims import Claim, send_claim
from mainstem.process.sink_commit import BatchCommitter, JobIdentity, TaskOutput, fence_job
from mainstem.process.sink_decision import Decision, SinkRefused
from mainstem.records import fingerprint_sum
from tests.support.records import committed, wait_for_markers


@pytest.fixture(scope="module", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def connection(request):
    log = request.getfixturevalue("mainstem_log" if request.param == "embedded" else "kafka_broker")
    connection = Connection(log.bootstrap)
    ensure_internal_topics(connection)
    return connection


class Job:
    """A job with a checkpoint directory, and a committer that can be started anew like a driver."""

    def __init__(self, connection, directory):
        self.connection, self.name = connection, f"job-{uuid.uuid4().hex[:8]}"
        self.source, self.output = f"{self.name}.in", f"{self.name}.out"
        ensure_topic(connection, self.source, 1)
        ensure_topic(connection, self.output, 2)
        self.checkpoint = directory / self.name
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": f"query-{self.name}"}))
        self.steps, self.open_ones = [], []

    def start(self):
        identity = JobIdentity(self.name, "v1", str(self.checkpoint))
        committer = BatchCommitter(identity, self.connection, trace=self.steps.append)
        self.open_ones.append(committer)
        committer.open()
        return committer

    def stop(self):
        for committer in self.open_ones:
            committer.close()

    def ends(self, batch):
        return {"source": {self.source: {0: 10 * (batch + 1)}}}

    def run(self, committer, batch, shares, **settings):
        """One batch, with one task for each partition."""
        (self.checkpoint / "offsets" / str(batch)).write_text("plan")
        assert committer.decide(batch, self.ends(batch)) is Decision.RUN
        plan = committer.begin()
        outputs = [self.write(plan, partition, rows) for partition, rows in shares.items()]
        return committer.commit(batch, self.ends(batch), outputs, **settings)

    def write(self, plan, partition, rows):
        target = TopicPartition(self.output, partition)

        def join(wanted):
            return send_claim(plan.claims, Claim(plan.transaction, wanted.topic, wanted.partition))

        with TransactionWriter(plan.ticket, join) as writer:
            writer.append(target, [key for key, _ in rows], [value for _, value in rows], None, int(time.time() * 1000))
            appended = writer.finish()[target]
        return TaskOutput(target, Output(appended.base, appended.last, appended.count, fingerprint_sum(rows)))


@pytest.fixture
def job(connection, tmp_path):
    job = Job(connection, tmp_path)
    yield job
    job.stop()


ROWS = [(b"a", b"1"), (b"b", None), (None, b"3")]


def progress_of(connection, job):
    mine = job_key(job.name, "v1").encode()
    found = committed(connection, PROGRESS)
    return [msgspec.json.decode(each.value(), type=Progress) for each in found if each.key() == mine]


def test_rows_marker_and_progress_become_visible_together(job):
    committer = job.start()
    marker = job.run(committer, 0, {0: ROWS, 1: ROWS[:1]}, tables={"airlines": {0: 7}})
    assert read_marker(job.connection, job.name, "v1") == marker
    assert marker.checkpoint == f"query-{job.name}"
    assert marker.outputs[job.output][0] == Output(0, 2, 3, fingerprint_sum(ROWS))
    assert marker.tables == {"airlines": {0: 7}}
    assert progress_of(job.connection, job) == [
        Progress(job.name, "v1", 0, {job.source: {0: 10}}, {"airlines": {0: 7}}, {job.output: {0: 3, 1: 1}})
    ]


def test_counts_and_hashes_are_cumulative_also_over_a_restart(job):
    job.run(job.start(), 0, {0: ROWS})
    marker = job.run(job.start(), 1, {0: ROWS[:1], 1: ROWS[1:]})
    twice = fingerprint_sum(ROWS + ROWS[:1])
    assert marker.written == {job.output: {0: Written(4, twice), 1: Written(2, fingerprint_sum(ROWS[1:]))}}
    assert set(marker.outputs[job.output]) == {0, 1}


def test_what_was_written_to_a_topic_that_was_made_anew_since_counts_no_more(job):
    """A quarantine is deleted once what is in it was mended; the audit held what was in it against the new one."""
    committer = job.start()
    job.run(committer, 0, {0: ROWS}, topics={job.output: "a", job.source: "s"})
    marker = job.run(committer, 1, {}, topics={job.source: "s"})  # it has not looked at the output
    assert (marker.topics, set(marker.written[job.output])) == ({job.output: "a", job.source: "s"}, {0})
    marker = job.run(committer, 2, {1: ROWS[:1]}, topics={job.output: "b"})
    assert marker.written == {job.output: {1: Written(1, fingerprint_sum(ROWS[:1]))}}
    assert marker.ends == {job.output: {1: 1}}
    assert marker.topics == {job.output: "b", job.source: "s"}


def test_a_marker_of_before_its_ends_were_kept_gets_them_where_it_is_gone_on_from(job):
    marker = job.run(job.start(), 0, {0: ROWS, 1: ROWS[:1]})
    told = msgspec.structs.replace(marker, ends={})
    append(job.connection, COMMITS, [(job_key(job.name, "v1").encode(), msgspec.json.encode(told))])
    after = job.run(job.start(), 1, {1: ROWS[:1]}).ends[job.output]
    assert after[0] >= 3  # that of its transaction's marker, as like as not
    assert set(after) >= {0, 1}


def test_where_its_outputs_end_is_said_of_every_partition_also_of_one_that_is_quiet(job):
    job.run(job.start(), 0, {0: ROWS})
    job.run(job.start(), 1, {1: ROWS})
    marker = job.run(job.start(), 2, {})
    ends = [each.ends[job.output] for each in progress_of(job.connection, job)]
    assert ends[0] == {0: 3}
    assert ends[1] == ends[2] == marker.ends[job.output] == {0: 3, 1: 3}


def test_a_restart_does_not_go_on_from_what_a_replaced_leader_tells(job, monkeypatch):
    job.run(job.start(), 0, {0: ROWS})
    monkeypatch.setattr(reader, "end_offsets", lambda *_, **__: {0: 0})
    assert job.start().marker.batch == 0


@pytest.mark.parametrize("found", ["checkpoint another", None])
def test_a_checkpoint_that_is_not_the_jobs_is_refused_before_the_fence(job, found):
    """A second installation on the same log stopped the first one again and again."""
    first = job.start()
    job.run(first, 0, {0: ROWS})
    kept = (job.checkpoint / "metadata").read_text()
    if found is None:
        (job.checkpoint / "metadata").unlink()
    else:
        (job.checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(SinkRefused, match=f"the last commit belongs to .*, this is {found or 'one that is new'}"):
        job.start()
    (job.checkpoint / "metadata").write_text(kept)
    job.run(first, 1, {0: ROWS})
    assert read_marker(job.connection, job.name, "v1").batch == 1


def test_a_checkpoint_that_was_cut_before_its_first_commit_is_not_asked_whose_it_is(job):
    job.checkpoint.mkdir(parents=True, exist_ok=True)
    (job.checkpoint / "metadata").write_text("")
    assert job.start().marker is None  # what is left of it is removed before the query starts


def test_the_look_before_the_fence_does_not_wait_for_the_transaction_that_the_fence_ends(job):
    """Each start after a kill took a minute."""
    committer = job.start()
    job.run(committer, 0, {0: ROWS})
    ticket, place = committer.begin().ticket, TopicPartition(COMMITS, 0)
    with committer._transaction.writer(ticket) as writer:
        writer.append(place, [b"undecided"], [b"{}"], None, int(time.time() * 1000))
        writer.finish()
    assert end_offsets(job.connection, COMMITS, committed=True)[0] < end_offsets(job.connection, COMMITS)[0]
    began = time.monotonic()
    assert job.start().marker.batch == 0
    assert time.monotonic() - began < 20  # its timeout is 60 s


def test_the_plan_is_durable_before_the_transaction_ends(job):
    job.run(job.start(), 0, {0: ROWS})
    wanted = ["fenced", "marker_read", "begun", "plan_synced", "offsets_committed", "marker_written", "ending", "ended"]
    assert [step for step in job.steps if step in wanted] == wanted


def test_what_the_driver_before_commits_until_it_is_fenced_is_found(job):
    """The marker is read after the fence: read before it, the batch would be written twice."""
    before = job.start()

    class FencedLater(type(before._transaction)):
        def fence(self):
            job.run(before, 0, {0: ROWS})  # it is faster by a moment
            super().fence()

    committer = BatchCommitter(before.job, job.connection, trace=job.steps.append)
    job.open_ones.append(committer)
    committer._transaction.__class__ = FencedLater
    committer.open()
    assert committer.decide(0, job.ends(0)) is Decision.SKIP


def test_an_empty_batch_touches_no_output(job):
    committer = job.start()
    job.run(committer, 0, {0: ROWS})
    wait_for_markers(job.connection)
    before = end_offsets(job.connection, job.output)
    marker = job.run(committer, 1, {})
    assert end_offsets(job.connection, job.output) == before
    assert (marker.batch, marker.outputs) == (1, {})
    assert [progress.batch for progress in progress_of(job.connection, job)] == [0, 1]


def test_only_partitions_that_receive_rows_get_a_control_record(job):
    job.run(job.start(), 0, {1: ROWS})
    wait_for_markers(job.connection)
    assert end_offsets(job.connection, job.output) == {0: 0, 1: len(ROWS) + 1}


def test_a_job_that_is_idle_writes_nothing(job):
    committer = job.start()
    job.run(committer, 0, {0: ROWS})
    topics = (job.output, PROGRESS)
    wait_for_markers(job.connection)
    before = [end_offsets(job.connection, topic) for topic in topics]
    committer.close()
    job.start()  # which asks of the topic of commits what its leader acknowledges, and of no other
    assert [end_offsets(job.connection, topic) for topic in topics] == before


def test_a_restart_skips_what_is_committed_and_refuses_what_does_not_fit(job):
    job.run(job.start(), 0, {0: ROWS})
    committer = job.start()
    assert committer.decide(0, job.ends(0)) is Decision.SKIP
    assert committer.decide(1, job.ends(1), job.ends(0)) is Decision.RUN
    with pytest.raises(SinkRefused):
        committer.decide(0, job.ends(1))


def test_stopping_aborts_what_is_open_at_once(job):
    """Else its transaction would hold back every reader of the output until it times out."""
    committer = job.start()
    (job.checkpoint / "offsets" / "0").write_text("plan")
    job.write(committer.begin(), 0, ROWS)
    assert end_offsets(job.connection, job.output, committed=True)[0] == 0
    committer.close()
    wait_for_markers(job.connection)
    assert end_offsets(job.connection, job.output, committed=True)[0] == len(ROWS) + 1
    assert read_marker(job.connection, job.name, "v1") is None


def test_deleting_a_job_ends_what_a_dead_driver_left_open(job):
    committer = job.start()
    plan = committer.begin()
    job.write(plan, 0, ROWS)
    fence_job(job.connection, job.name, "v1")
    wait_for_markers(job.connection)
    stable, high = (end_offsets(job.connection, job.output, committed=committed) for committed in (True, False))
    assert stable == high
    with pytest.raises(TransactionFailed):
        job.write(plan, 1, ROWS)


def test_a_partition_claimed_twice_aborts_the_batch(job):
    committer = job.start()
    (job.checkpoint / "offsets" / "0").write_text("plan")
    plan = committer.begin()
    first = job.write(plan, 0, ROWS)
    with pytest.raises(TransactionFailed, match="another attempt"):
        job.write(plan, 0, ROWS[:1])
    with pytest.raises(TransactionFailed, match="is written already"):
        committer.commit(0, job.ends(0), [first])
    committer.abort()
    committer.open()
    marker = job.run(committer, 0, {0: ROWS})
    assert marker.written[job.output][0].count == len(ROWS)


def test_after_an_error_the_committer_must_be_opened_again(job):
    committer = job.start()
    (job.checkpoint / "offsets" / "0").write_text("plan")
    job.write(committer.begin(), 0, ROWS)
    committer.abort()
    with pytest.raises(TransactionFailed, match="call fence"):
        committer.begin()


def test_a_batch_that_takes_too_long_is_told_with_the_setting_of_its_job(job, monkeypatch):
    committer = job.start()
    (job.checkpoint / "offsets" / "0").write_text("plan")
    output = job.write(committer.begin(), 0, ROWS)
    fence_job(job.connection, job.name, "v1")  # as the broker does
    monkeypatch.setattr("mainstem.client.transaction.since_boot", lambda: since_boot() + 61)
    with pytest.raises(TransactionFailed, match="more than its timeout of 60000 ms") as caught:
        committer.commit(0, job.ends(0), [output])
    assert caught.value.hint == f"give transactions more time: transaction_timeout_seconds under [jobs.{job.name}]"


@pytest.mark.parametrize("kind", [Fenced, IdentityLost, TransactionFailed])
def test_what_refuses_a_task_is_the_age_of_its_transaction_once_it_is_older_than_its_timeout(job, monkeypatch, kind):
    """With transactions of before Kafka 4 a task may be refused its claim, or be told that its identity is lost."""
    committer = job.start()
    job.write(committer.begin(), 0, ROWS)
    worker = RuntimeError("".join(["Traceback\n", *traceback.format_exception_only(kind("refused"))]))
    other = RuntimeError("Traceback\nValueError: refused")
    assert committer.reason(worker) is worker
    monkeypatch.setattr("mainstem.client.transaction.since_boot", lambda: since_boot() + 61)
    assert isinstance(committer.reason(worker), TookTooLong)
    assert committer.reason(other) is other


def test_what_a_batch_computes_takes_none_of_the_time_of_its_transaction(job, monkeypatch):
    """A newer driver was told as a timeout where the work before the first row had taken longer than that."""
    committer = job.start()
    (job.checkpoint / "offsets" / "0").write_text("plan")
    plan = committer.begin()
    monkeypatch.setattr("mainstem.client.transaction.since_boot", lambda: since_boot() + 61)
    output = job.write(plan, 0, ROWS)
    fence_job(job.connection, job.name, "v1")
    with pytest.raises(Fenced):
        committer.commit(0, job.ends(0), [output])


def test_the_marker_joins_last_so_that_it_holds_back_others_for_moments_only(job):
    """While tasks write, readers of the commits and progress topics are not held back."""
    committer = job.start()
    plan = committer.begin()
    job.write(plan, 0, ROWS)
    for topic in (COMMITS, PROGRESS):
        assert end_offsets(job.connection, topic) == end_offsets(job.connection, topic, committed=True)


def test_two_jobs_commit_side_by_side(connection, tmp_path):
    jobs = [Job(connection, tmp_path) for _ in range(2)]
    failures = []

    def work(job):
        try:
            committer = job.start()
            for batch in range(5):
                job.run(committer, batch, {batch % 2: ROWS})
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [read_marker(connection, job.name, "v1").batch for job in jobs] == [4, 4]
    for job in jobs:
        job.stop()
