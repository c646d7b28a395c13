"""Against a real log: what is answered is in the topic, and two registries never give one id to two schemas."""

import asyncio
import json
import time
import uuid

import pytest

from mainstem.client.append import append
from mainstem.client.compacted import read_compacted
from mainstem.client.internal import SCHEMAS
from mainstem.registry import store as store_module
from mainstem.registry.errors import NotFound
from mainstem.registry.records import schema_key, subject_key
from mainstem.registry.state import NewSchema
from mainstem.registry.store import Store
from tests.support.undecided import DECIDED, VISIBLE, WORDS, undecided


def registration(subject, new):
    def decide(state):
        result = state.register(subject, new)
        return result.id, result.records

    return decide


def new_schema(name):
    return NewSchema(json.dumps({"type": "record", "name": name, "fields": []}))


def test_what_is_answered_is_in_the_topic_and_a_new_registry_reads_it(log_connection):
    subject = f"store-{uuid.uuid4()}"

    async def scenario():
        first, second = Store(log_connection), Store(log_connection)
        await first.open()
        schema_id = await first.write(registration(subject, new_schema("A")))
        assert first.state.version(subject, 1).id == schema_id
        assert schema_key(subject, 1) in read_compacted(log_connection, SCHEMAS)
        await second.open()
        assert second.state.version(subject, 1).id == schema_id
        await first.close()
        await second.close()

    asyncio.run(scenario())


def test_two_registries_at_once_never_give_one_id_to_two_schemas(log_connection):
    run = uuid.uuid4().hex

    async def scenario():
        stores = [Store(log_connection), Store(log_connection)]
        for store in stores:
            await store.open()

        async def register(store, number):
            schema = new_schema(f"R{run}_{number}")
            return schema.schema, await store.write(registration(f"race-{run}-{number}", schema))

        # even numbers through one registry, odd ones through the other, and every third one through both
        calls = [register(stores[number % 2], number) for number in range(12)]
        calls += [register(stores[(number + 1) % 2], number) for number in range(0, 12, 3)]
        answers = await asyncio.gather(*calls)
        for store in stores:
            await store.catch_up()
            assert {store.state.schema_by_id(schema_id).schema for _, schema_id in answers} == {
                store.state.find(f"race-{run}-{number}", new_schema(f"R{run}_{number}")).schema for number in range(12)
            }
            await store.close()
        return answers

    answers = asyncio.run(scenario())
    assert len({text for text, _ in answers}) == len({schema_id for _, schema_id in answers}) == 12
    assert len(set(answers)) == 12  # both registries gave the same id to the same schema


def test_a_decision_is_not_made_on_what_a_replaced_leader_tells(log_connection, monkeypatch):
    run = uuid.uuid4().hex
    hand_over = Store._hand_over

    def slow(self, batch, next_offset):
        time.sleep(0.2)
        return hand_over(self, batch, next_offset)

    async def scenario():
        first, second = Store(log_connection), Store(log_connection)
        await first.open()
        given = await first.write(registration(f"stale-{run}-1", new_schema(f"A{run}")))
        monkeypatch.setattr(store_module, "end_offsets", lambda *_: {0: 0})
        monkeypatch.setattr(Store, "_hand_over", slow)
        await second.open()
        assert await second.write(registration(f"stale-{run}-2", new_schema(f"B{run}"))) == given + 1
        await first.close()
        await second.close()

    asyncio.run(scenario())


def test_a_refusal_is_decided_on_the_newest_state(log_connection):
    """The second registry has not read yet what the first has written; its refusal would be a mistake."""
    subject = f"late-{uuid.uuid4()}"

    async def scenario():
        first, second = Store(log_connection), Store(log_connection)
        await first.open()
        await second.open()
        await first.write(registration(subject, new_schema("A")))
        deleted = await second.write(lambda state: state.delete_subject(subject))
        assert deleted == [1]
        with pytest.raises(NotFound):
            await first.write(lambda state: state.delete_subject(f"no-{subject}"))
        await first.close()
        await second.close()

    asyncio.run(scenario())


def test_a_registry_shows_nothing_of_an_aborted_or_open_transaction(log_connection):
    run = uuid.uuid4().hex

    def level(word):
        return [(SCHEMAS, subject_key("CONFIG", f"{word}-{run}"), b'{"compatibilityLevel":"FULL_TRANSITIVE"}')]

    def known(store):
        return tuple(word for word in WORDS if store.state.level(f"{word}-{run}") == "FULL_TRANSITIVE")

    async def scenario():
        store = Store(log_connection, timeout_seconds=120)
        opening = asyncio.ensure_future(store.open())  # it is open with what is written now, once that is decided
        while "between" not in known(store):
            await asyncio.sleep(0.02)
        assert known(store) == VISIBLE
        assert not opening.done()
        await asyncio.to_thread(commit)
        await opening
        assert known(store) == DECIDED
        await store.close()

    with undecided(log_connection, run, level) as commit:
        asyncio.run(asyncio.wait_for(scenario(), 120))


def test_an_unreadable_record_is_counted_and_the_rest_is_served(log_connection):
    subject = f"after-{uuid.uuid4()}"
    append(log_connection, SCHEMAS, [(b"nonsense", b"{}")])

    async def scenario():
        store = Store(log_connection)
        await store.open()
        await store.write(registration(subject, new_schema("A")))
        unreadable = store.state.unreadable
        assert unreadable >= 1
        # No registry writes this; what follows in the same batch must come in all the same.
        null, level = b'{"version":null}', b'{"compatibilityLevel":"FULL"}'
        odd = [(subject_key("DELETE_SUBJECT", subject), null), (subject_key("CONFIG", subject), level)]
        await asyncio.to_thread(append, log_connection, SCHEMAS, odd)
        await store.catch_up()
        assert store.state.unreadable == unreadable + 1
        assert store.state.level(subject) == "FULL"
        await store.close()

    asyncio.run(scenario())
    append(log_connection, SCHEMAS, [(b"nonsense", None)])
