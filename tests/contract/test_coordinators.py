"""Groups and transactions, request by request: our coordinators and Apache Kafka's give the same answers.

Every expectation here was met by Apache Kafka 4.3.0 (`pytest --kafka`); the one difference is that Kafka sends clients
away while it is busy (`RawClient.settled` asks again), and ours lets them wait.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mainstem.wire.errors import Code
from tests.contract.clients import Log
from tests.support.raw import codes_of, producer_of
from tests.support.routed import RoutedClient

OK = Code.none
BATCH = {"version": 12}


@pytest.fixture
def raw(log: Log) -> Iterator[RoutedClient]:
    with RoutedClient(log.bootstrap) as client:
        client.find_coordinators("any")
        yield client


@pytest.fixture
def topic(raw, name):
    raw.create_topic(name, 2)
    return name


def outcome(answer):
    return Code(answer.error_code), answer.producer_epoch


# --- FindCoordinator --------------------------------------------------------------------------------------------------


def test_find_coordinator_answers_in_every_version(raw):
    for version in range(4):
        kind = {} if version == 0 else {"key_type": 0}
        answer = raw.call(10, version, key="x", **kind)
        assert (answer.error_code, answer.node_id in raw.brokers) == (OK, True)
    many = raw.call(10, 4, key_type=1, coordinator_keys=["a", "b"]).coordinators
    assert [(each.key, each.error_code) for each in many] == [("a", OK), ("b", OK)]
    assert {each.node_id for each in many} <= set(raw.brokers)


def test_find_coordinator_refuses_a_kind_of_key_it_does_not_know(raw):
    answer = raw.call(10, 2, key="x", key_type=7)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (Code.invalid_request, -1, "", -1)
    for version, kind in ((4, 9), (5, 2)):
        (each,) = raw.call(10, version, key_type=kind, coordinator_keys=["a"]).coordinators
        assert (each.error_code, each.node_id, each.port) == (Code.invalid_request, -1, -1)


# --- InitProducerId ---------------------------------------------------------------------------------------------------


def test_init_producer_id_raises_the_epoch_and_keeps_the_id(raw, name):
    first, second = producer_of(raw.init(name)), producer_of(raw.init(name))
    assert second == (first[0], first[1] + 1)
    assert raw.init(None).error_code == OK


def test_g8_init_producer_id_refuses_a_timeout_above_the_brokers_maximum(raw, name):
    assert raw.init("").error_code == Code.invalid_request
    assert raw.init(name, timeout_ms=10_000_000).error_code == Code.invalid_transaction_timeout
    assert raw.init(name, timeout_ms=0).error_code == Code.invalid_transaction_timeout
    refused = raw.init(name, producer_id=5, producer_epoch=-1)
    assert (refused.error_code, refused.producer_id) == (Code.invalid_request, -1)


def test_a_producer_that_says_who_it_was_goes_on(raw, name):
    """KIP-360, with the retry of a request whose answer was lost."""
    raw.init(name)
    producer_id, epoch = producer_of(raw.init(name))
    stale = {"producer_id": producer_id, "producer_epoch": 0}
    assert raw.init(name, **stale).error_code == Code.producer_fenced
    assert raw.init(name, version=3, **stale).error_code == Code.invalid_producer_epoch
    current = {"producer_id": producer_id, "producer_epoch": epoch}
    assert outcome(raw.init(name, **current)) == (OK, 2)
    assert outcome(raw.init(name, **current)) == (OK, 2), "a retry"
    assert raw.init(name, producer_id=999_999, producer_epoch=1).error_code == Code.producer_fenced
    assert outcome(raw.init(name + "-new", producer_id=999_999, producer_epoch=1)) == (OK, 0)


# --- transactions, version 1 ------------------------------------------------------------------------------------------


def test_kip_890_version_1_verifies_that_a_partition_was_added(raw, name, topic):
    """A batch of a zombie would hang in a partition that no EndTxn knows of."""
    producer = producer_of(raw.init(name))
    batch = {"transactional_id": name, "producer": producer, "sequence": 0}
    assert raw.produce(topic, b"x", **batch) is Code.invalid_txn_state
    assert raw.produce(topic, b"x", version=11, **batch) is Code.transaction_abortable
    assert raw.add(name, producer, topic, 0) is OK
    assert raw.produce(topic, b"x", **batch) is OK
    assert raw.produce(topic, b"x", partition=1, **batch) is Code.invalid_txn_state
    assert raw.end(name, producer, commit=True).error_code == OK
    raw.wait_until_complete(name)
    after = {"transactional_id": name, "producer": producer, "sequence": 1}
    assert raw.produce(topic, b"late", **after) is Code.invalid_txn_state


def test_g6_version_1_refuses_strangers_and_old_epochs(raw, name, topic):
    """PRODUCER_FENCED from coordinator APIs, INVALID_PRODUCER_EPOCH on produce and from old versions."""
    producer = producer_of(raw.init(name))
    stranger, stale = (producer[0] + 1, 0), (producer[0], 5)
    assert raw.add("nobody", producer, topic) is Code.invalid_producer_id_mapping
    assert raw.add(name, stranger, topic) is Code.invalid_producer_id_mapping
    assert raw.add(name, stale, topic) is Code.producer_fenced
    assert raw.add(name, stale, topic, version=1) is Code.invalid_producer_epoch
    assert raw.end("nobody", producer, commit=True).error_code == Code.invalid_producer_id_mapping
    assert raw.end(name, stranger, commit=True).error_code == Code.invalid_producer_id_mapping
    assert raw.end(name, stale, commit=True).error_code == Code.producer_fenced
    assert raw.end(name, stale, commit=True, version=1).error_code == Code.invalid_producer_epoch


def test_add_partitions_is_all_or_nothing(raw, name, topic):
    producer = producer_of(raw.init(name))
    assert raw.add(name, producer, topic, 0) is OK
    answer = raw.call(
        24,
        3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[{"name": topic, "partitions": [0, 1, 7]}],
    )
    assert codes_of(answer) == {Code.operation_not_attempted, Code.unknown_topic_or_partition}


def test_g8_end_txn_can_be_repeated_but_not_changed(raw, name, topic):
    producer = producer_of(raw.init(name))
    for commit in (True, False):
        assert raw.end(name, producer, commit=commit).error_code == Code.invalid_txn_state, "nothing was begun"
    for commit in (True, False):
        assert raw.add(name, producer, topic, 0) is OK
        assert raw.end(name, producer, commit=commit).error_code == OK
        assert raw.end(name, producer, commit=commit).error_code == OK
        assert raw.end(name, producer, commit=not commit).error_code == Code.invalid_txn_state


def test_version_1_fences_the_producer_before(raw, name, topic):
    old = producer_of(raw.init(name))
    raw.add(name, old, topic, 0)
    assert raw.produce(topic, b"x", transactional_id=name, producer=old, sequence=0) is OK
    new = producer_of(raw.init(name))
    assert new[0] == old[0]
    assert new[1] > old[1]
    late = raw.produce(topic, b"x", transactional_id=name, producer=old, sequence=1)
    assert late is Code.invalid_producer_epoch
    assert raw.add(name, old, topic) is Code.producer_fenced
    assert raw.end(name, old, commit=True).error_code == Code.producer_fenced
    assert raw.add(name, new, topic, 0) is OK
    assert raw.produce(topic, b"x", transactional_id=name, producer=new, sequence=0) is OK
    assert raw.end(name, new, commit=True).error_code == OK


def test_a_takeover_by_the_same_producer_aborts_its_open_transaction(raw, name, topic):
    producer = producer_of(raw.init(name))
    raw.add(name, producer, topic, 0)
    again = raw.init(name, producer_id=producer[0], producer_epoch=producer[1])
    assert outcome(again) == (OK, producer[1] + 1)
    state = raw.call(65, 0, transactional_ids=[name + "-none"]).transaction_states[0]
    assert state.error_code == Code.transactional_id_not_found


# --- transactions, version 2 ------------------------------------------------------------------------------------------


def test_version_2_adds_by_producing_and_raises_the_epoch(raw, name, topic):
    first = producer_of(raw.init(name, version=5))
    batch = {"transactional_id": name, "version": 12}
    assert raw.produce(topic, b"x", producer=first, sequence=0, **batch) is OK
    strangers = [((first[0], 7), name), ((first[0] + 1, 0), name), (first, "nobody")]
    found = [
        raw.produce(topic, b"x", producer=who, sequence=0, partition=1, version=12, transactional_id=transactional_id)
        for who, transactional_id in strangers
    ]
    assert found == [
        Code.invalid_producer_epoch,
        Code.invalid_producer_id_mapping,
        Code.invalid_producer_id_mapping,
    ]
    second = raw.end(name, first, commit=True, version=5)
    assert (second.error_code, producer_of(second)) == (OK, (first[0], first[1] + 1))
    raw.wait_until_complete(name)
    late = raw.produce(topic, b"x", producer=first, sequence=1, **batch)
    assert late is Code.invalid_producer_epoch, "nothing late slips into the next transaction"
    assert raw.produce(topic, b"x", producer=producer_of(second), sequence=0, **batch) is OK


def test_g6_version_2_end_repeated_with_the_epoch_before_is_answered_like_the_first(raw, name, topic):
    """A retry of EndTxn with epoch - 1 after success must return OK and the current epoch."""
    producer = producer_of(raw.init(name, version=5))
    for commit in (True, False):
        batch = {"transactional_id": name, "producer": producer, "sequence": 0}
        assert raw.produce(topic, b"x", version=12, **batch) is OK
        after = raw.end(name, producer, commit=commit, version=5)
        assert outcome(raw.end(name, producer, commit=commit, version=5)) == (OK, producer[1] + 1)
        assert outcome(raw.end(name, producer, commit=not commit, version=5)) == (Code.invalid_txn_state, -1)
        producer = producer_of(after)


def test_version_2_may_abort_nothing_but_not_commit_it(raw, name, topic):
    producer = producer_of(raw.init(name, version=5))
    assert outcome(raw.end(name, producer, commit=True, version=5)) == (Code.invalid_txn_state, -1)
    aborted = raw.end(name, producer, commit=False, version=5)
    assert outcome(aborted) == (OK, producer[1] + 1)
    assert outcome(raw.end(name, producer_of(aborted), commit=False, version=5)) == (OK, producer[1] + 2)


def test_g6_both_versions_live_on_one_topic_and_one_id(raw, name, topic):
    producer = producer_of(raw.init(name, version=5))
    batch = {"transactional_id": name, "producer": producer, "sequence": 0}
    assert raw.produce(topic, b"x", version=12, **batch) is OK
    assert raw.end(name, producer, commit=True, version=3).error_code == OK
    assert raw.add(name, producer, topic, 1) is OK
    assert raw.produce(topic, b"x", version=9, partition=1, **batch) is OK
    assert outcome(raw.end(name, producer, commit=True, version=5)) == (OK, producer[1] + 1)


def test_version_2_fences_the_producer_before(raw, name, topic):
    old = producer_of(raw.init(name, version=5))
    batch = {"transactional_id": name, "producer": old, "version": 12}
    assert raw.produce(topic, b"x", sequence=0, **batch) is OK
    new = producer_of(raw.init(name, version=5))
    assert new == (old[0], old[1] + 2)
    assert raw.produce(topic, b"x", sequence=1, **batch) is Code.invalid_producer_epoch
    assert raw.produce(topic, b"x", sequence=0, partition=1, **batch) is Code.invalid_producer_epoch
    for commit in (True, False):
        assert outcome(raw.end(name, old, commit=commit, version=5)) == (Code.producer_fenced, -1)


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_may_recover(raw, name, topic):
    producer = producer_of(raw.init(name, version=5, timeout_ms=300))
    batch = {"transactional_id": name, "producer": producer, "version": 12}
    assert raw.produce(topic, b"x", sequence=0, **batch) is OK
    until = time.monotonic() + 20
    while time.monotonic() < until:
        (state,) = raw.call(65, 0, transactional_ids=[name]).transaction_states
        if state.transaction_state == "CompleteAbort":
            break
        time.sleep(0.1)
    assert (state.transaction_state, state.producer_epoch) == ("CompleteAbort", producer[1] + 1)
    assert raw.produce(topic, b"x", sequence=1, **batch) is Code.invalid_producer_epoch
    assert outcome(raw.end(name, producer, commit=True, version=5)) == (Code.invalid_txn_state, -1)
    assert outcome(raw.end(name, producer, commit=False, version=5)) == (OK, producer[1] + 1)
    again = raw.init(name, version=5, producer_id=producer[0], producer_epoch=producer[1])
    assert outcome(again) == (OK, producer[1] + 1)


# --- offsets in transactions ------------------------------------------------------------------------------------------


def add_offsets(raw, name, producer, group, version=3):
    return raw.settled(
        25,
        version,
        transactional_id=name,
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id=group,
    ).error_code


def test_txn_offset_commit_is_verified_too(raw, name, topic):
    producer, group = producer_of(raw.init(name)), name
    commit = (name, producer, group, topic, 5)
    assert raw.commit_in_transaction(*commit, version=0) is Code.invalid_txn_state
    assert raw.commit_in_transaction(*commit, version=3) is Code.invalid_txn_state
    assert raw.commit_in_transaction(*commit, version=4) is Code.transaction_abortable
    assert add_offsets(raw, name, (producer[0], 9), group) == Code.producer_fenced
    assert add_offsets(raw, name, (producer[0], 9), group, version=1) == Code.invalid_producer_epoch
    assert add_offsets(raw, name, producer, group) == OK
    assert raw.commit_in_transaction(*commit) is OK
    assert raw.commit_in_transaction(name, (producer[0], 9), group, topic, 5) is Code.invalid_producer_epoch
    assert raw.commit_in_transaction(*commit, generation_id=4, member_id="m") is Code.unknown_member_id
    assert raw.commit_in_transaction(name, producer, "", topic, 5) is Code.invalid_group_id


def test_kip_447_offsets_of_a_transaction_are_unstable_until_it_ends(raw, name, topic):
    """Visible at commit, dropped at abort; in between UNSTABLE_OFFSET_COMMIT for whoever requires stable ones."""
    producer, group = producer_of(raw.init(name)), name
    expected = -1
    for offset, commit in ((5, True), (50, False), (60, True)):
        assert add_offsets(raw, name, producer, group) == OK
        assert raw.commit_in_transaction(name, producer, group, topic, offset) is OK
        assert raw.committed(group, topic) == (expected, OK)
        assert raw.committed(group, topic, stable=True) == (-1, Code.unstable_offset_commit)
        assert raw.end(name, producer, commit=commit).error_code == OK
        expected = offset if commit else expected
        wait_for(lambda: raw.committed(group, topic, stable=True) == (expected, OK))  # noqa: B023
        assert raw.committed(group, topic) == (expected, OK)


def test_the_later_of_a_plain_commit_and_a_transactions_wins(raw, name, topic):
    producer, group = producer_of(raw.init(name)), name
    assert add_offsets(raw, name, producer, group) == OK
    assert raw.commit_in_transaction(name, producer, group, topic, 70) is OK
    assert not codes_of(commit(raw, group, topic, 60))
    assert raw.committed(group, topic) == (60, OK)
    assert raw.end(name, producer, commit=True).error_code == OK
    wait_for(lambda: raw.committed(group, topic, stable=True)[1] is OK)
    assert raw.committed(group, topic) == (60, OK)


def test_version_2_adds_the_groups_partition_by_committing(raw, name, topic):
    producer, group = producer_of(raw.init(name, version=5)), name
    assert raw.commit_in_transaction(name, producer, group, topic, 80, version=5) is OK
    stale = raw.commit_in_transaction(name, (producer[0], 9), group, topic, 80, version=5)
    assert stale is Code.invalid_producer_epoch
    assert outcome(raw.end(name, producer, commit=True, version=5)) == (OK, producer[1] + 1)
    wait_for(lambda: raw.committed(group, topic) == (80, OK))
    late = raw.commit_in_transaction(name, producer, group, topic, 90, version=5)
    assert late is Code.invalid_producer_epoch


def test_txn_offset_commit_refuses_single_partitions(raw, name, topic):
    producer = producer_of(raw.init(name, version=5))
    answer = raw.call(
        28,
        5,
        transactional_id=name,
        group_id=name,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[
            {"name": "nowhere", "partitions": [{"partition_index": 0, "committed_offset": 5}]},
            {
                "name": topic,
                "partitions": [
                    {"partition_index": 9, "committed_offset": 5},
                    {"partition_index": 1, "committed_offset": 5, "committed_metadata": "m" * 5000},
                ],
            },
        ],
    )
    found = {(each.name, one.partition_index): one.error_code for each in answer.topics for one in each.partitions}
    assert found == {
        ("nowhere", 0): Code.unknown_topic_or_partition,
        (topic, 9): Code.unknown_topic_or_partition,
        (topic, 1): Code.offset_metadata_too_large,
    }


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)


# --- groups -----------------------------------------------------------------------------------------------------------


def join_fields(
    group, *, version, member="", instance=None, protocols=(("range", b"a"),), kind="consumer", session=10_000
):
    fields = {
        "group_id": group,
        "session_timeout": session,
        "member_id": member,
        "protocol_type": kind,
        "protocols": [{"name": protocol, "metadata": metadata} for protocol, metadata in protocols],
    }
    if version >= 1:
        fields["rebalance_timeout"] = 10_000
    if version >= 5:
        fields["group_instance_id"] = instance
    return fields


def join(raw, group, *, version=9, **options):
    return raw.settled(11, version, **join_fields(group, version=version, **options))


def joined(answer):
    """(code, generation, is the leader, how many members it was told)."""
    leads = answer.leader == answer.member_id
    return Code(answer.error_code), answer.generation_id, leads, len(answer.members)


def sync_fields(group, generation, member, *, instance=None, assignments=(), kind="consumer", protocol="range"):
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": kind,
        "protocol_name": protocol,
        "assignments": [{"member_id": each, "assignment": data} for each, data in assignments],
    }


def sync(raw, *args, **options):
    return raw.call(14, 5, **sync_fields(*args, **options))


def beat(raw, group, generation, member, instance=None):
    return Code(
        raw.call(
            12, 4, group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
        ).error_code
    )


def commit(raw, group, topic, offset, *, version=8, generation=-1, member="", **partition):
    entry = {"partition_index": 0, "committed_offset": offset, **partition}
    return raw.call(
        8,
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[{"name": topic, "partitions": [entry]}],
    )


def commit_code(*args, **options):
    (code,) = codes_of(commit(*args, **options)) or {OK}
    return code


def lead(raw, group):
    """Found the group with one member; its id and generation."""
    member = join(raw, group).member_id
    generation = join(raw, group, member=member).generation_id
    assert sync(raw, group, generation, member, assignments=[(member, b"all")]).assignment == b"all"
    return member, generation


def stay(bootstrap: str, group: str, ended: threading.Event, told: list[Code]) -> None:
    """Be a member as clients are: join again when told to, until it has ended."""
    with RoutedClient(bootstrap) as raw:
        raw.find_coordinators("any")
        member = join(raw, group).member_id
        while not ended.is_set():
            answer = join(raw, group, member=member)
            told.append(Code(answer.error_code))
            if answer.error_code != OK:
                continue
            everybody = [(each.member_id, b"a") for each in answer.members]
            told.append(Code(sync(raw, group, answer.generation_id, member, assignments=everybody).error_code))
            while told[-1] is OK and not ended.is_set():
                time.sleep(0.01)
                told.append(beat(raw, group, answer.generation_id, member))


def test_g8_who_stays_is_known_while_others_come_and_go(log, name):
    """librdkafka and franz-go were told UNKNOWN_MEMBER_ID amid a rebalance that another member had begun."""
    ended = threading.Event()
    told: list[list[Code]] = [[], []]
    with ThreadPoolExecutor(2) as threads:
        staying = [threads.submit(stay, log.bootstrap, name, ended, each) for each in told]
        try:
            with RoutedClient(log.bootstrap) as raw:
                raw.find_coordinators("any")
                for _ in range(8):
                    member = join(raw, name).member_id
                    assert join(raw, name, member=member).error_code == OK
                    left = raw.call(13, 3, group_id=name, members=[{"member_id": member}])
                    assert left.members[0].error_code == OK
        finally:
            ended.set()
        for each in staying:
            each.result(60)
    for each in told:
        assert set(each) == {OK, Code.rebalance_in_progress}


def test_a_group_that_is_not_there(raw, name):
    assert beat(raw, name, 1, "m") is Code.unknown_member_id
    assert sync(raw, name, 1, "m").error_code == Code.unknown_member_id
    assert join(raw, name, member="m").error_code == Code.unknown_member_id
    (left,) = raw.call(13, 3, group_id=name, members=[{"member_id": "x"}]).members
    assert left.error_code == Code.unknown_member_id
    assert raw.call(13, 2, group_id=name, member_id="x").error_code == Code.unknown_member_id


def test_a_group_has_a_name(raw):
    assert join(raw, "").error_code == Code.invalid_group_id
    assert beat(raw, "", 1, "m") is Code.invalid_group_id
    assert sync(raw, "", 1, "m").error_code == Code.invalid_group_id
    assert raw.call(13, 2, group_id="", member_id="x").error_code == Code.invalid_group_id


def test_join_checks_what_it_is_asked(raw, name):
    assert join(raw, name, session=10).error_code == Code.invalid_session_timeout
    assert join(raw, name, kind="").error_code == Code.inconsistent_group_protocol
    assert join(raw, name, protocols=()).error_code == Code.inconsistent_group_protocol


def test_a_new_member_gets_its_id_first_from_version_4_on(raw, name):
    asked = join(raw, name)
    assert (asked.error_code, asked.generation_id) == (Code.member_id_required, -1)
    assert asked.member_id.startswith("raw-")
    assert joined(join(raw, name, member=asked.member_id)) == (OK, 1, True, 1)
    assert joined(join(raw, name + "-old", version=3)) == (OK, 1, True, 1)


def test_a_generation_is_completed_by_its_leader(raw, name, topic):
    member = join(raw, name).member_id
    generation = join(raw, name, member=member).generation_id
    assert beat(raw, name, generation, member) is OK
    assert beat(raw, name, 77, member) is Code.illegal_generation
    assert joined(join(raw, name, member=member)) == (OK, generation, True, 1), "its answer was lost"
    options = {"generation": generation, "member": member}
    assert commit_code(raw, name, topic, 1, **options) is Code.rebalance_in_progress
    assert sync(raw, name, 77, member).error_code == Code.illegal_generation
    assert sync(raw, name, generation, "nobody").error_code == Code.unknown_member_id
    assert sync(raw, name, generation, member, protocol="other").error_code == Code.inconsistent_group_protocol
    assert sync(raw, name, generation, member, kind=None).error_code == Code.inconsistent_group_protocol
    (group,) = raw.call(15, 5, groups=[name]).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("CompletingRebalance", "consumer", "")
    assert [(each.member_metadata, each.member_assignment) for each in group.members] == [(b"", b"")]
    done = sync(raw, name, generation, member, assignments=[(member, b"all")])
    assert (done.error_code, done.assignment, done.protocol_type, done.protocol_name) == (
        OK,
        b"all",
        "consumer",
        "range",
    )
    assert sync(raw, name, generation, member).assignment == b"all"


def test_generation_fencing_of_commits(raw, name, topic):
    member, generation = lead(raw, name)
    assert commit_code(raw, name, topic, 1, generation=generation, member=member) is OK
    assert commit_code(raw, name, topic, 1, generation=77, member=member) is Code.illegal_generation
    assert commit_code(raw, name, topic, 1, generation=generation, member="nobody") is Code.unknown_member_id
    assert commit_code(raw, name, topic, 1) is Code.unknown_member_id, "an admin, while the group has members"
    assert commit_code(raw, name, topic, 1, member=member) is Code.illegal_generation
    gone = {"generation": 3, "member": "m"}
    assert commit_code(raw, name + "-none", topic, 1, **gone) is Code.illegal_generation
    assert commit_code(raw, name + "-none", topic, 1, version=9, **gone) is Code.group_id_not_found


def test_members_must_understand_each_other(raw, name):
    lead(raw, name)
    assert join(raw, name, kind="connect").error_code == Code.inconsistent_group_protocol
    assert join(raw, name, protocols=(("other", b""),)).error_code == Code.inconsistent_group_protocol


def test_any_protocol_type_makes_a_group(raw, name):
    member = join(raw, name, kind="connect", protocols=(("sessioned", b"x"),)).member_id
    answer = join(raw, name, member=member, kind="connect", protocols=(("sessioned", b"x"), ("compatible", b"y")))
    assert (answer.error_code, answer.protocol_type, answer.protocol_name) == (OK, "connect", "sessioned")


def beside(raw, group):
    """The name of a group that is not there, whose coordinator is that of `group`."""
    names = [f"nowhere{number}" for number in range(50)]
    ours, *theirs = raw.call(10, 4, key_type=0, coordinator_keys=[group, *names]).coordinators
    return next(each.key for each in theirs if each.node_id == ours.node_id)


def test_describe_groups(raw, name):
    lead(raw, name)
    nowhere = beside(raw, name)
    answer = raw.call(15, 6, groups=[name, nowhere], include_authorized_operations=True)
    groups = {each.group_id: each for each in answer.groups}
    stable, missing = groups[name], groups[nowhere]
    (member,) = stable.members
    assert (stable.group_state, stable.protocol_data, stable.authorized_operations) == ("Stable", "range", 3400)
    assert (member.member_metadata, member.member_assignment) == (b"a", b"all")
    assert (member.client_id, member.client_host) == ("raw", "/127.0.0.1")
    assert (missing.group_state, missing.error_code) == ("Dead", Code.group_id_not_found)
    (missing,) = raw.call(15, 5, groups=["nowhere"]).groups
    assert (missing.group_state, missing.error_code) == ("Dead", OK)


def test_two_members_rebalance(raw, name):
    first, generation = lead(raw, name)
    with raw.another() as other:
        second = join(other, name).member_id
        assert beat(raw, name, generation, first) is OK
        other.send(11, 9, **join_fields(name, version=9, member=second))
        wait_for(lambda: beat(raw, name, generation, first) is Code.rebalance_in_progress)
        assert sync(raw, name, generation, first).error_code == Code.rebalance_in_progress
        assert joined(join(raw, name, member=first)) == (OK, generation + 1, True, 2)
        assert joined(other.receive(11, 9)) == (OK, generation + 1, False, 0)
        other.send(14, 5, **sync_fields(name, generation + 1, second))
        parts = [(first, b"one"), (second, b"two")]
        assert sync(raw, name, generation + 1, first, assignments=parts).assignment == b"one"
        assert other.receive(14, 5).assignment == b"two"
        assert joined(join(other, name, member=second)) == (OK, generation + 1, False, 0), "nothing has changed"


def test_g8_a_member_that_exceeds_its_poll_interval_costs_one_rebalance_and_one_when_it_is_back(raw, name):
    """It leaves, as clients do whose program does not poll; Nisshi sent those that stayed through one more."""
    first, generation = lead(raw, name)

    def rebalanced(members: int) -> int:
        """The one that stays joins once, and is left in peace then."""
        wait_for(lambda: beat(raw, name, generation, first) is Code.rebalance_in_progress)
        answer = join(raw, name, member=first)
        assert joined(answer) == (OK, generation + 1, True, members)
        everybody = [(each.member_id, b"a") for each in answer.members]
        assert sync(raw, name, generation + 1, first, assignments=everybody).error_code == OK
        for _ in range(20):
            assert beat(raw, name, generation + 1, first) is OK
            time.sleep(0.01)
        return generation + 1

    with raw.another() as other:
        for _ in range(2):
            second = join(other, name).member_id
            assert beat(raw, name, generation, first) is OK, "nobody has joined yet"
            other.send(11, 9, **join_fields(name, version=9, member=second))
            generation = rebalanced(2)
            assert joined(other.receive(11, 9)) == (OK, generation, False, 0)
            assert sync(other, name, generation, second).assignment == b"a"
            left = other.call(13, 3, group_id=name, members=[{"member_id": second}])
            assert left.members[0].error_code == OK
            generation = rebalanced(1)


def test_a_follower_with_new_metadata_makes_everybody_join(raw, name):
    first, generation = lead(raw, name)
    with raw.another() as other:
        second = join(other, name).member_id
        other.send(11, 9, **join_fields(name, version=9, member=second))
        wait_for(lambda: beat(raw, name, generation, first) is Code.rebalance_in_progress)
        generation = join(raw, name, member=first).generation_id
        other.receive(11, 9)
        sync(raw, name, generation, first, assignments=[(first, b"1"), (second, b"2")])
        other.send(11, 9, **join_fields(name, version=9, member=second, protocols=(("range", b"new"),)))
        wait_for(lambda: beat(raw, name, generation, first) is Code.rebalance_in_progress)
        answer = join(raw, name, member=first)
        assert joined(answer) == (OK, generation + 1, True, 2)
        assert {each.metadata for each in answer.members} == {b"a", b"new"}
        assert other.receive(11, 9).generation_id == generation + 1


def test_leaving_is_answered_for_each(raw, name):
    member, generation = lead(raw, name)
    leaving = [{"member_id": member}, {"member_id": "x"}, {"member_id": "", "group_instance_id": "none"}]
    answer = raw.call(13, 4, group_id=name, members=leaving)
    assert [each.error_code for each in answer.members] == [OK, Code.unknown_member_id, Code.unknown_member_id]
    (group,) = raw.call(15, 5, groups=[name]).groups
    assert (group.group_state, group.protocol_type, group.members) == ("Empty", "consumer", ())
    assert beat(raw, name, generation, member) is Code.unknown_member_id
    assert sync(raw, name, generation, member).error_code == Code.unknown_member_id


def test_static_members_take_their_place_again(raw, name):
    first = join(raw, name, instance="i1")
    assert joined(first) == (OK, 1, True, 1)
    old = first.member_id
    sync(raw, name, 1, old, instance="i1", assignments=[(old, b"all")])
    second = join(raw, name, instance="i1")
    new = second.member_id
    assert joined(second) == (OK, 1, True, 1), "no rebalance"
    assert second.skip_assignment
    assert new != old
    assert sync(raw, name, 1, new, instance="i1").assignment == b"all"
    assert beat(raw, name, 1, old, "i1") is Code.fenced_instance_id
    assert beat(raw, name, 1, old) is Code.unknown_member_id
    assert beat(raw, name, 1, new, "i1") is OK
    assert join(raw, name, member=old, instance="i1").error_code == Code.fenced_instance_id
    assert join(raw, name, member="x", instance="i9").error_code == Code.unknown_member_id
    assert sync(raw, name, 1, old, instance="i1").error_code == Code.fenced_instance_id


def test_a_static_leader_of_an_older_version_is_told_that_the_old_one_leads(raw, name):
    old = join(raw, name, instance="i1").member_id
    sync(raw, name, 1, old, instance="i1", assignments=[(old, b"all")])
    again = join(raw, name, version=5, instance="i1")
    assert (again.error_code, again.generation_id, again.leader, again.members) == (OK, 1, old, ())


def test_a_static_member_with_another_protocol_rebalances(raw, name):
    old = join(raw, name, instance="i1").member_id
    sync(raw, name, 1, old, instance="i1", assignments=[(old, b"all")])
    assert joined(join(raw, name, instance="i1", protocols=(("range", b"new"),)))[:2] == (OK, 1)
    assert (
        join(raw, name, instance="i1", protocols=(("roundrobin", b"x"),)).error_code == Code.inconsistent_group_protocol
    )


def test_an_admin_removes_a_static_member_by_its_instance(raw, name):
    old = join(raw, name, instance="i1").member_id
    sync(raw, name, 1, old, instance="i1", assignments=[(old, b"all")])
    leaving = [{"member_id": "x", "group_instance_id": "i1"}, {"member_id": "", "group_instance_id": "i1"}]
    answer = raw.call(13, 4, group_id=name, members=leaving)
    assert [each.error_code for each in answer.members] == [Code.fenced_instance_id, OK]
    assert raw.call(15, 5, groups=[name]).groups[0].group_state == "Empty"


def test_list_and_delete_groups(raw, name, topic):
    member, _ = lead(raw, name)
    commit(raw, name + "-simple", topic, 5)
    delete = {"groups_names": [name]}
    assert raw.call(42, 2, **delete).results[0].error_code == Code.non_empty_group
    raw.call(13, 4, group_id=name, members=[{"member_id": member}])

    def listed(**filters):
        groups = [each for answer in raw.everywhere(16, 5, **filters) for each in answer.groups]
        return {(g.group_id, g.group_state, g.protocol_type) for g in groups if g.group_id.startswith(name)}

    everything = {(name, "Empty", "consumer"), (name + "-simple", "Empty", "")}
    answers = raw.everywhere(16, 5)
    types = {g.group_type.lower() for answer in answers for g in answer.groups if g.group_id.startswith(name)}
    assert types == {"classic"}
    assert listed() == everything
    assert listed(states_filter=["EMPTY"], types_filter=["Classic"]) == everything
    assert listed(states_filter=["Stable"]) == listed(types_filter=["consumer"]) == set()
    assert raw.call(42, 2, **delete).results[0].error_code == OK
    assert raw.call(42, 2, **delete).results[0].error_code == Code.group_id_not_found


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_g8_metadata_comes_back_to_the_letter(raw, name, topic):
    """Nisshi lost the string that comes with a committed offset."""
    assert raw.committed(name, topic) == (-1, OK)
    for version, metadata, kept in ((2, "é2", "é2"), (5, " 5\n", " 5\n"), (8, None, "")):
        commit(raw, name, topic, 60 + version, version=version, committed_metadata=metadata)
        (found,) = raw.call(9, 7, group_id=name, topics=None).topics[0].partitions
        assert (found.committed_offset, found.metadata, found.committed_leader_epoch) == (60 + version, kept, -1)
    commit(raw, name, topic, 70, committed_metadata="m", committed_leader_epoch=3)
    (found,) = raw.call(9, 7, group_id=name, topics=None).topics[0].partitions
    assert (found.committed_offset, found.metadata, found.committed_leader_epoch) == (70, "m", 3)


def test_single_partitions_of_a_commit_are_refused(raw, name, topic):
    partitions = [
        {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m" * 4097},
        {"partition_index": 1, "committed_offset": 1, "committed_metadata": "m" * 4096},
        {"partition_index": 5, "committed_offset": 1},
    ]
    nowhere = {"name": "nowhere", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    answer = raw.call(8, 8, group_id=name, topics=[{"name": topic, "partitions": partitions}, nowhere])
    found = {(each.name, one.partition_index): one.error_code for each in answer.topics for one in each.partitions}
    assert found == {
        (topic, 0): Code.offset_metadata_too_large,
        (topic, 1): OK,
        (topic, 5): Code.unknown_topic_or_partition,
        ("nowhere", 0): Code.unknown_topic_or_partition,
    }


def test_offsets_by_topic_id(raw, name, topic):
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    other = uuid.uuid4()
    entry = [{"partition_index": 0, "committed_offset": 9}]
    topics = [{"topic_id": topic_id, "partitions": entry}, {"topic_id": other, "partitions": entry}]
    answer = raw.call(8, 10, group_id=name, topics=topics)
    codes = {each.topic_id: each.partitions[0].error_code for each in answer.topics}
    assert codes == {topic_id: OK, other: Code.unknown_topic_id}
    asked = [{"topic_id": each, "partition_indexes": [0]} for each in (topic_id, other)]
    (group,) = raw.call(9, 10, groups=[{"group_id": name, "topics": asked}]).groups
    found = {each.topic_id: each.partitions[0] for each in group.topics}
    assert (found[topic_id].committed_offset, found[other].error_code) == (9, Code.unknown_topic_id)
    (group,) = raw.call(9, 10, groups=[{"group_id": name, "topics": None}]).groups
    assert [(each.topic_id, each.partitions[0].committed_offset) for each in group.topics] == [(topic_id, 9)]


def test_offset_delete_spares_what_the_group_reads(raw, name, topic):
    asked = [{"name": topic, "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
    assert raw.call(47, 0, group_id=name, topics=asked).error_code == Code.group_id_not_found
    member, generation = lead(raw, name)
    commit(raw, name, topic, 5, generation=generation, member=member)

    def delete():
        (found,) = raw.call(47, 0, group_id=name, topics=asked).topics
        return {each.partition_index: each.error_code for each in found.partitions}

    # `a` is no subscription that could be read, so any topic may be the group's.
    assert delete() == {0: Code.group_subscribed_to_topic, 9: Code.unknown_topic_or_partition}
    raw.call(13, 4, group_id=name, members=[{"member_id": member}])
    assert delete() == {0: OK, 9: Code.unknown_topic_or_partition}
    assert raw.committed(name, topic) == (-1, OK)


def test_a_group_of_another_type_must_be_empty_for_offset_delete(raw, name, topic):
    member = join(raw, name, kind="connect").member_id
    join(raw, name, member=member, kind="connect")
    asked = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    assert raw.call(47, 0, group_id=name, topics=asked).error_code == Code.non_empty_group


# --- what admins ask of transactions ----------------------------------------------------------------------------------


def test_list_transactions_filters(raw, name, topic):
    producer = producer_of(raw.init(name))
    raw.add(name, producer, topic, 0)

    def listed(**filters):
        answers = raw.everywhere(66, 2, **filters)
        assert [each.error_code for each in answers] == [OK] * len(raw.brokers)
        found = [each for answer in answers for each in answer.transaction_states]
        return [(each.transactional_id, each.transaction_state) for each in found]

    ongoing = [(name, "Ongoing")]
    answer = raw.call(66, 2, state_filters=["Ongoing", "Nope"], producer_id_filters=[producer[0]])
    assert answer.unknown_state_filters == ("Nope",)
    assert listed(producer_id_filters=[producer[0]]) == ongoing
    assert listed(transactional_id_pattern=name[:5] + ".*") == ongoing
    assert listed(transactional_id_pattern=name[:5]) == []
    assert listed(transactional_id_pattern=name, duration_filter=600_000) == []
    time.sleep(0.01)
    assert listed(transactional_id_pattern=name, duration_filter=1) == ongoing
    assert raw.call(66, 2, transactional_id_pattern="(").error_code == Code.invalid_regular_expression


def test_describe_producers_shows_where_a_transaction_begins(raw, name, topic):
    producer = producer_of(raw.init(name))
    raw.add(name, producer, topic, 0)
    raw.produce(topic, b"x", transactional_id=name, producer=producer, sequence=0)

    def described():
        (found,) = raw.call(61, 0, topics=[{"name": topic, "partition_indexes": [0, 1, 9]}]).topics
        return {
            each.partition_index: (
                Code(each.error_code),
                [(one.producer_id, one.last_sequence, one.current_txn_start_offset) for one in each.active_producers],
            )
            for each in found.partitions
        }

    assert described() == {
        0: (OK, [(producer[0], 0, 0)]),
        1: (OK, []),
        9: (Code.unknown_topic_or_partition, []),
    }
    (state,) = raw.call(65, 0, transactional_ids=[name]).transaction_states
    assert [(each.topic, each.partitions) for each in state.topics] == [(topic, (0,))]
    raw.end(name, producer, commit=True)
    wait_for(lambda: described()[0] == (OK, [(producer[0], 0, -1)]))
