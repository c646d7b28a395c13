import threading
import uuid

import msgspec
import pytest
from confluent_kafka import KafkaException

from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.internal import CATALOG, COMMITS, PROGRESS
from mainstem.client.progress import Marker, Progress
from mainstem.client.topics import end_offsets
from mainstem.client.writer import TransactionalWriter
from mainstem.serve import control
from tests.support.waiting import wait_until


def test_catalog_and_progress_are_told_in_their_order_and_the_last_commits_once(fleet):
    job = f"j{uuid.uuid4().hex[:8]}"
    connection, stop, told = fleet.connection, threading.Event(), []
    write_catalog(connection, {f"job:{job}": {"versions": {}}})
    marker = Marker(job, "1", "id", 3, {"t": {"t": {0: 7}}}, ends={"o": {0: 5}})
    append(connection, COMMITS, [(f"{job}@1".encode(), msgspec.json.encode(marker))])
    append(connection, PROGRESS, [(b"k", b"no JSON")])
    thread = threading.Thread(target=control.follow, args=(connection, told.append, stop))
    thread.start()
    try:
        wait_until(lambda: any(each.caught_up for each in told), "it has caught up")
        assert f"job:{job}" in {key for each in told for key in each.catalog}
        assert [found for each in told for found in each.markers if found.job == job] == [marker]
        write_catalog(connection, {f"job:{job}": None})
        append(connection, PROGRESS, [(b"k", msgspec.json.encode(Progress(job, "1", 4, {"t": {0: 8}})))])
        wait_until(lambda: any(p.job == job for each in told for p in each.progress), "the batch is told")
        wait_until(lambda: told[-1].position >= end_offsets(connection, CATALOG)[0], "all of the catalog is told")
        wait_until(lambda: told[-1].progress_position >= end_offsets(connection, PROGRESS)[0], "all of jobs is told")
        assert not [each for each in told if each.progress_position and not each.caught_up]
        assert [each.catalog[f"job:{job}"] for each in told if f"job:{job}" in each.catalog][-1] is None
    finally:
        stop.set()
        thread.join()


def test_batches_that_were_there_are_told_once_the_catalog_is_however_late_that_comes(fleet, monkeypatch):
    """A lineage keeps only the last batches of a version that it does not know yet."""
    job, stop, told, held, is_read = f"j{uuid.uuid4().hex[:8]}", threading.Event(), [], [], threading.Event()
    write_catalog(fleet.connection, {f"job:{job}": {"versions": {}}})
    progress = [Progress(job, "1", number, {"t": {0: number}}) for number in range(3)]
    append(fleet.connection, PROGRESS, [(b"k", msgspec.json.encode(each)) for each in progress])
    end, arrived = end_offsets(fleet.connection, PROGRESS)[0], control.arrived

    def late(*arguments):
        """The catalog comes one call after the end of what jobs say."""
        comes = is_read.is_set()
        if comes:
            yield from held
            held.clear()
        for message in arrived(*arguments):
            if message.topic() == PROGRESS or comes:
                yield message
            else:
                held.append(message)
            if message.topic() == PROGRESS and message.offset() >= end:
                is_read.set()

    monkeypatch.setattr(control, "arrived", late)
    thread = threading.Thread(target=control.follow, args=(fleet.connection, told.append, stop))
    thread.start()
    try:
        wait_until(lambda: any(each.caught_up for each in told), "it has caught up")
    finally:
        stop.set()
        thread.join()
    known = next(number for number, each in enumerate(told) if f"job:{job}" in each.catalog)
    assert [each for learned in told[known:] for each in learned.progress if each.job == job] == progress


def test_what_fails_for_a_reason_of_nobody_s_is_tried_again(fleet, monkeypatch):
    monkeypatch.setattr(control, "_AGAIN_SECONDS", 0.0)
    failures, stop, told = [BufferError("full"), KafkaException("x"), KeyError("a bug")], threading.Event(), []

    def tell(learned):
        if failures:
            raise failures.pop()
        told.append(learned)

    thread = threading.Thread(target=control.follow, args=(fleet.connection, tell, stop))
    thread.start()
    try:
        wait_until(lambda: told, "it goes on")
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("topic", [COMMITS, PROGRESS, CATALOG])
def test_what_was_committed_is_told_while_somebody_has_a_transaction_open(fleet, topic):
    job = f"j{uuid.uuid4().hex[:8]}"
    connection, stop, told = fleet.connection, threading.Event(), []
    writer = TransactionalWriter(connection, f"s{job}")
    writer.open()
    marker = Marker(job, "1", "id", 3, {"t": {"t": {0: 7}}}, ends={"o": {0: 5}})
    append(connection, COMMITS, [(f"{job}@1".encode(), msgspec.json.encode(marker))])
    writer.begin()
    writer.send(topic, 0, f"{job}@2".encode(), None)
    writer._flush()
    thread = threading.Thread(target=control.follow, args=(connection, told.append, stop))
    thread.start()
    try:
        wait_until(lambda: any(each.caught_up for each in told), "it has caught up")
        assert [found for each in told for found in each.markers if found.job == job] == [marker]
        writer.abort()
        wait_until(lambda: told[-1].progress_position >= end_offsets(connection, PROGRESS)[0], "all of jobs is told")
        wait_until(lambda: told[-1].position >= end_offsets(connection, CATALOG)[0], "all of the catalog is told")
    finally:
        stop.set()
        thread.join()
        writer.close()


def test_a_marker_that_somebody_else_wrote_is_passed_over(fleet):
    job = f"j{uuid.uuid4().hex[:8]}"
    connection, stop, told = fleet.connection, threading.Event(), []
    marker = Marker(job, "1", "id", 3, {"t": {"t": {0: 7}}}, ends={"o": {0: 5}})
    append(connection, COMMITS, [(b"strange@1", b"{}"), (f"{job}@1".encode(), msgspec.json.encode(marker))])
    thread = threading.Thread(target=control.follow, args=(connection, told.append, stop))
    thread.start()
    try:
        wait_until(lambda: any(each.caught_up for each in told), "it has caught up")
        assert [found for each in told for found in each.markers if found.job == job] == [marker]
    finally:
        stop.set()
        thread.join()
        append(connection, COMMITS, [(b"strange@1", None)])
