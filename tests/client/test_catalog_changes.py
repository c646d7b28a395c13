"""Of what several writers change in one entry, nothing is lost."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from mainstem.client import catalog_changes as module
from mainstem.client.catalog import read_catalog, write_catalog
from mainstem.client.catalog_changes import change_catalog, tell_catalog
from mainstem.client.cluster import Api, Cluster
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.internal import CATALOG, CATALOG_TRANSACTIONAL_ID
from mainstem.client.topics import end_offsets
from mainstem.client.transaction import SharedTransaction
from mainstem.core import ManualClock, TopicPartition, UserError


def adding(key, version):
    def change(catalog):
        entry = catalog.get(key, {})
        return {key: entry | {"versions": entry.get("versions", {}) | {version: {}}}}

    return change


def test_whoever_was_slower_begins_again_with_what_the_other_has_written(connection, name):
    key, others = f"job:{name}", ["2"]

    def change(catalog):
        while others:
            change_catalog(connection, adding(key, others.pop()))
        return adding(key, "3")(catalog)

    end = change_catalog(connection, change)
    assert read_catalog(connection)[key] == {"versions": {"2": {}, "3": {}}}
    assert end == end_offsets(connection, CATALOG)[0] - 1, "after the entry, before the end of its transaction"


def test_many_at_once_lose_nothing(connection, name):
    key, versions = f"job:{name}", [str(n) for n in range(6)]
    with ThreadPoolExecutor(len(versions)) as threads:
        list(threads.map(lambda version: change_catalog(connection, adding(key, version)), versions))
    assert set(read_catalog(connection)[key]["versions"]) == set(versions)


def test_what_a_killed_process_left_open_is_not_there_and_holds_nobody_up(connection, name):
    key, killed = f"job:{name}", SharedTransaction(connection, CATALOG_TRANSACTIONAL_ID)
    killed.fence()
    with killed.writer(killed.begin()) as writer:
        writer.append(TopicPartition(CATALOG, 0), [key.encode()], [b'{"versions": {"9": {}}}'], None, 0)
        writer.finish()
    killed.close()
    change_catalog(connection, adding(key, "1"))
    assert read_catalog(connection)[key] == {"versions": {"1": {}}}


def test_what_is_refused_is_not_written_and_none_removes_an_entry(connection, name):
    key = f"job:{name}"
    write_catalog(connection, {key: {"versions": {"1": {}}}})

    def refuse(catalog):
        raise UserError(f"found {len(catalog[key]['versions'])}")

    with pytest.raises(UserError, match="found 1"):
        change_catalog(connection, refuse)
    assert change_catalog(connection, lambda _: {}) == 0
    assert read_catalog(connection)[key] == {"versions": {"1": {}}}
    change_catalog(connection, lambda _: {key: None})
    assert key not in read_catalog(connection)


def test_what_the_catalog_knows_is_not_written_again(connection, name):
    entry = {f"sink:{name}": {"type": "delta"}}
    tell_catalog(connection, entry)
    end = end_offsets(connection, CATALOG)
    tell_catalog(connection, entry)
    assert end_offsets(connection, CATALOG) == end
    assert read_catalog(connection)[f"sink:{name}"] == {"type": "delta"}


@pytest.mark.parametrize(("is_done", "other"), [(True, False), (True, True), (False, True)])
def test_a_commit_whose_answer_was_lost_is_looked_for(connection, name, monkeypatch, is_done, other):
    """It was sent again after somebody else had taken the id, and refused: what was done was begun again."""
    key, tries, ask = f"job:{name}", [], Cluster.post

    def change(catalog):
        tries.append(1)
        return adding(key, str(len(tries)))(catalog)

    def lose_the_answer(cluster, broker, api, version, **fields):
        if api is not Api.END_TXN:
            return ask(cluster, broker, api, version, **fields)
        monkeypatch.setattr(Cluster, "post", ask)

        async def lost():
            if is_done:
                await ask(cluster, broker, api, version, **fields)
            await asyncio.to_thread(take_the_id)
            raise BrokerUnavailable("the connection is gone")

        return lost()

    def take_the_id():
        if other:
            change_catalog(connection, adding(key, "of another"))
        with closing(SharedTransaction(connection, CATALOG_TRANSACTIONAL_ID)) as newer:
            newer.fence()

    monkeypatch.setattr(Cluster, "post", lose_the_answer)
    change_catalog(connection, change)
    found = {"1" if is_done else "2": {}} | ({"of another": {}} if other else {})
    assert read_catalog(connection)[key] == {"versions": found}
    assert len(tries) == (1 if is_done else 2)


def test_who_is_overtaken_for_too_long_is_told_that_nothing_is_changed(connection, name):
    key, clock = f"job:{name}", ManualClock()

    def overtaken(_):
        change_catalog(connection, adding(key, "2"))
        clock.advance_ms(int(module.PATIENCE_SECONDS * 1000))
        return {key: {"versions": {}}}

    with pytest.raises(BrokerUnavailable, match="others have changed it at the same time"):
        change_catalog(connection, overtaken, clock=clock)
    assert read_catalog(connection)[key] == {"versions": {"2": {}}}


def test_what_took_too_long_between_its_look_and_its_end_begins_again(connection, name, monkeypatch):
    monkeypatch.setattr(module, "TRANSACTION_MS", 1_000)
    key, commit, tries = f"job:{name}", SharedTransaction.commit, []

    def slow(transaction, counts):
        tries.append(counts)
        if len(tries) == 1:  # as a process that was stopped: it returns when the broker has aborted what was open
            read_catalog(connection, linearizable=True)
        commit(transaction, counts)

    monkeypatch.setattr(SharedTransaction, "commit", slow)
    change_catalog(connection, adding(key, "1"))
    assert read_catalog(connection)[key] == {"versions": {"1": {}}}
    assert len(tries) == 2
