"""Fetch sessions are state only: opened, continued, evicted."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mainstem.broker.fetch_sessions import EVICT_AFTER_SECONDS, PARTITIONS_PER_SLOT, FetchPartition, FetchSessions
from mainstem.core import ManualClock
from mainstem.wire.errors import Code, RequestError


def partition(index=0, offset=0):
    return FetchPartition("t", index, offset, 100)


def opened(sessions, count=1):
    return sessions.open([partition(i) for i in range(count)], by_id=False)


def proceed(sessions, session_id, epoch, changed=(), forgotten=(), by_id=False):
    return sessions.proceed(session_id, epoch, changed, forgotten, by_id=by_id)


def code_of_failure(call, *args, **kwargs):
    with pytest.raises(RequestError) as caught:
        call(*args, **kwargs)
    return caught.value.code


def test_epochs_count_up_from_1():
    sessions = FetchSessions(10, ManualClock())
    session = opened(sessions)
    for epoch in (1, 2, 3):
        assert proceed(sessions, session.session_id, epoch) is session
    assert code_of_failure(proceed, sessions, session.session_id, 3) is Code.invalid_fetch_session_epoch


def test_epochs_start_again_at_1_after_the_last():
    sessions = FetchSessions(10, ManualClock())
    session = opened(sessions)
    session.epoch = 2**31 - 1
    proceed(sessions, session.session_id, 2**31 - 1)
    assert session.epoch == 1


def test_an_unknown_session_and_one_of_the_other_kind():
    sessions = FetchSessions(10, ManualClock())
    assert code_of_failure(proceed, sessions, 5, 1) is Code.fetch_session_id_not_found
    session = opened(sessions)
    assert code_of_failure(proceed, sessions, session.session_id, 1, by_id=True) is Code.fetch_session_topic_id_error
    sessions.close(session.session_id)
    assert code_of_failure(proceed, sessions, session.session_id, 1) is Code.fetch_session_id_not_found


def test_changes_keep_what_was_answered():
    sessions = FetchSessions(10, ManualClock())
    session = opened(sessions, 2)
    session.partitions["t", 0].answered_high_watermark = 7
    proceed(sessions, session.session_id, 1, [partition(0, offset=5), partition(9)], [("t", 1), ("gone", 0)])
    assert list(session.partitions) == [("t", 0), ("t", 9)]
    assert session.partitions["t", 0].offset == 5
    assert session.partitions["t", 0].answered_high_watermark == 7


def test_partitions_that_had_records_go_to_the_end():
    session = opened(FetchSessions(10, ManualClock()), 3)
    session.answered(session.partitions["t", 0], had_records=True)
    assert [index for _, index in session.partitions] == [1, 2, 0]


def test_a_full_cache_evicts_only_what_was_idle_for_long():
    clock = ManualClock()
    sessions = FetchSessions(2, clock)
    old, young = opened(sessions), opened(sessions)
    assert opened(sessions) is None
    clock.advance_ms(int(EVICT_AFTER_SECONDS * 1000))
    proceed(sessions, young.session_id, 1)
    new = opened(sessions)
    assert new is not None
    assert code_of_failure(proceed, sessions, old.session_id, 1) is Code.fetch_session_id_not_found
    assert opened(sessions) is None


def test_no_slots_no_sessions():
    assert opened(FetchSessions(0, ManualClock())) is None


def test_sessions_share_room_for_their_partitions():
    """Each of a thousand could name 100,000."""
    clock = ManualClock()
    sessions = FetchSessions(2, clock)
    room = 2 * PARTITIONS_PER_SLOT
    assert opened(sessions, room + 1) is None, "larger than all may be"
    large = opened(sessions, room - 1)
    assert opened(sessions, 2) is None
    small = opened(sessions, 1)
    assert code_of_failure(proceed, sessions, small.session_id, 1, [partition(7)]) is Code.fetch_session_id_not_found
    assert len(sessions) == 1, "it is closed: its client asks for all of them anew"
    proceed(sessions, large.session_id, 1, [partition(room)], [("t", 0)])
    proceed(sessions, large.session_id, 2, [], [("t", index) for index in range(1, 3)])
    assert opened(sessions, 2) is not None, "there is room for what was forgotten"
    clock.advance_ms(int(EVICT_AFTER_SECONDS * 1000))
    assert opened(sessions, room) is not None, "as many are evicted as it needs"
    assert len(sessions) == 1


def test_names_that_are_no_topics_are_not_kept():
    """A thousand clients could leave 32 KB for each of 200 partitions."""
    sessions = FetchSessions(10, ManualClock())
    named = [FetchPartition(name, 0, 0, 1 << 20) for name in ("t" * 249, "t" * 250)]
    assert sessions.open(named, by_id=False) is None
    session = sessions.open(named[:1], by_id=False)
    assert code_of_failure(proceed, sessions, session.session_id, 1, named[1:]) is Code.fetch_session_id_not_found
    assert len(sessions) == 0


def test_nobody_knows_the_session_of_another_by_its_number():
    """They began with 1 at each start: who still had one moved on another client's, and passed over records."""
    first = [opened(FetchSessions(1, ManualClock())).session_id for _ in range(3)]
    assert len(set(first)) == 3
    assert min(first) > 0


class Sessions(RuleBasedStateMachine):
    """The cache never holds more than its slots and its partitions, and ids are never given twice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.sessions = FetchSessions(3, self.clock)
        self.epochs: dict[int, int] = {}

    @rule(count=st.sampled_from([1, 1, 2, PARTITIONS_PER_SLOT, 3 * PARTITIONS_PER_SLOT]))
    def open_one(self, count: int) -> None:
        session = opened(self.sessions, count)
        if session is not None:
            self.epochs[session.session_id] = 1

    @rule(data=st.data())
    def go_on(self, data) -> None:
        changed = [partition(index) for index in data.draw(st.lists(st.integers(0, 2000), max_size=5))]
        forgotten = [("t", index) for index in data.draw(st.lists(st.integers(0, 2000), max_size=5))]
        if self.epochs:
            session_id = data.draw(st.sampled_from(list(self.epochs)))
            try:
                proceed(self.sessions, session_id, self.epochs[session_id], changed, forgotten)
                self.epochs[session_id] += 1
            except RequestError:  # evicted, or closed for want of room
                del self.epochs[session_id]

    @rule(seconds=st.integers(1, 200))
    def wait(self, seconds: int) -> None:
        self.clock.advance_ms(seconds * 1000)

    @invariant()
    def bounded(self) -> None:
        assert len(self.sessions) <= 3
        count = sum(len(each.partitions) for each in self.sessions._sessions.values())
        assert self.sessions._partitions == count <= 3 * PARTITIONS_PER_SLOT


TestSessions = Sessions.TestCase
