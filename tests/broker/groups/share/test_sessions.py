from uuid import UUID

import pytest

from mainstem.broker.groups.share.sessions import MOST_OF_CONNECTION, SessionKey, SessionPartition, ShareSessions
from mainstem.wire.errors import Code, RequestError

A, B = SessionKey("g", "a"), SessionKey("g", "b")
P, Q, R = (SessionPartition(UUID(int=1), number) for number in range(3))


def refused(call, *arguments):
    with pytest.raises(RequestError) as found:
        call(*arguments)
    return found.value.code


def test_a_session_counts_its_requests():
    sessions = ShareSessions(10)
    session = sessions.open(A, 1, [P, Q])
    assert session.partitions == [P, Q]
    assert sessions.proceed(A, 1, [R], [P]) is session
    assert session.partitions == [Q, R]
    assert refused(sessions.proceed, A, 1) is Code.invalid_share_session_epoch
    assert refused(sessions.proceed, A, 0) is Code.invalid_share_session_epoch
    assert sessions.proceed(A, 2) is session
    assert session.partitions == [Q, R]


def test_the_epoch_begins_anew_at_one():
    sessions = ShareSessions(10)
    session = sessions.open(A, 1, [])
    session.epoch = 2**31 - 1
    sessions.proceed(A, 2**31 - 1)
    assert session.epoch == 1


def test_a_session_that_there_is_not():
    sessions = ShareSessions(10)
    assert refused(sessions.proceed, A, 1) is Code.share_session_not_found
    assert refused(sessions.finish, A) is Code.share_session_not_found


def test_the_last_request():
    sessions = ShareSessions(10)
    session = sessions.open(A, 1, [P])
    assert sessions.finish(A) is session
    assert len(sessions) == 0
    assert sessions.disconnected(1) == []


def test_a_new_session_takes_the_place_of_the_old_one():
    sessions = ShareSessions(1)
    sessions.open(A, 1, [P])
    session = sessions.open(A, 2, [Q])
    assert sessions.get(A) is session
    assert sessions.disconnected(1) == []
    assert sessions.disconnected(2) == [session]
    assert sessions.get(A) is None


def test_no_more_than_the_limit():
    sessions = ShareSessions(1)
    sessions.open(A, 1, [])
    assert refused(sessions.open, B, 1, []) is Code.share_session_limit_reached
    assert sessions.get(B) is None


def test_one_connection_leaves_others_some():
    sessions = ShareSessions(1_000)
    for number in range(MOST_OF_CONNECTION):
        sessions.open(SessionKey("g", f"m{number}"), 1, [])
    assert refused(sessions.open, SessionKey("g", "more"), 1, []) is Code.share_session_limit_reached
    sessions.open(SessionKey("g", "m0"), 1, [])  # its own, anew
    sessions.open(SessionKey("g", "more"), 2, [])
    sessions.close(SessionKey("g", "m1"))
    sessions.open(SessionKey("g", "again"), 1, [])


def test_sessions_end_with_their_connection():
    sessions = ShareSessions(10)
    sessions.open(B, 1, [])
    sessions.open(A, 1, [])
    other = sessions.open(SessionKey("h", "a"), 2, [])
    assert [session.key for session in sessions.disconnected(1)] == [A, B]
    assert sessions.get(other.key) is other


def test_an_answer_holds_what_is_new_or_has_failed():
    session = ShareSessions(10).open(A, 1, [P, Q])
    assert session.owes(P)
    session.answered(P, had_records=False, failed=True)
    assert session.owes(P)
    session.answered(P, had_records=True, failed=False)
    assert not session.owes(P)
    assert session.partitions == [Q, P]
    session.update([P, R], [])
    assert not session.owes(P)
    assert session.owes(R)
    session.answered(SessionPartition(UUID(int=9), 0), had_records=True, failed=True)
    assert session.partitions == [Q, P, R]


def test_all_sessions_together_have_room_for_so_many_partitions(monkeypatch):
    monkeypatch.setattr("mainstem.broker.groups.share.sessions.PARTITIONS_PER_SESSION", 1)
    sessions = ShareSessions(3)
    sessions.open(A, 1, [P, Q])
    assert refused(sessions.open, B, 2, [P, Q]) is Code.share_session_limit_reached
    sessions.open(B, 2, [P])
    assert refused(sessions.proceed, B, 1, [R]) is Code.share_session_limit_reached
    assert sessions.proceed(B, 1, [], [P]).partitions == []
    assert sessions.proceed(B, 2, [R]).partitions == [R]
    sessions.close(A)
    sessions.open(A, 1, [P, Q])


def test_a_new_session_for_which_there_is_no_room_leaves_the_old_one(monkeypatch):
    """It was gone, and nobody released what its member had: the end of its connection found no session."""
    monkeypatch.setattr("mainstem.broker.groups.share.sessions.PARTITIONS_PER_SESSION", 1)
    sessions = ShareSessions(3)
    old = sessions.open(A, 1, [P])
    other = sessions.open(B, 2, [P])
    assert refused(sessions.open, A, 3, [P, Q, R]) is Code.share_session_limit_reached
    assert sessions.get(A) is old
    assert sessions.proceed(A, 1, [Q]) is old
    assert sessions.disconnected(2) == [other]
    assert sessions.has_group("g")
    assert sessions.disconnected(3) == []
    assert sessions.open(A, 1, [P, Q, R]).partitions == [P, Q, R], "its own room counts"
    assert len(sessions.disconnected(1)) == 1


def test_a_group_is_there_while_a_member_has_a_session():
    sessions = ShareSessions(10)
    sessions.open(A, 1, [P])
    sessions.open(A, 2, [P])
    sessions.open(B, 1, [P])
    sessions.finish(A)
    assert sessions.has_group("g")
    sessions.disconnected(1)
    assert not sessions.has_group("g")
