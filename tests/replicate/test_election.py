import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.replicate.election import Election, Lineage, Timing, Verdict, Wish
from mainstem.replicate.errors import Unreadable

TIMING = Timing(heartbeat_seconds=1.0, silence_seconds=5.0, jitter_seconds=2.0)


def test_the_picture_in_the_docstring():
    lineage = Lineage()
    lineage.claim(7)
    assert [lineage.judge(8, 7, 1), lineage.judge(9, 7, 2)] == [Verdict.ACCEPTED] * 2
    lineage.claim(10)
    assert lineage.judge(11, 7, 3) is Verdict.STALE
    assert lineage.judge(12, 10, 1) is Verdict.ACCEPTED
    assert lineage.judge(13, 10, 3) is Verdict.GAP
    assert lineage.judge(14, 10, 4) is Verdict.DEAD
    lineage.claim(15)
    assert lineage.judge(16, 15, 1) is Verdict.ACCEPTED
    assert lineage.judge(17, 15, 1) is Verdict.DUPLICATE


def test_a_term_that_nobody_claimed_is_another_log():
    with pytest.raises(Unreadable, match="expected a term up to -1, found 3"):
        Lineage().judge(9, 3, 1)


def test_unfenced_takes_what_is_stale():
    lineage = Lineage(fenced=False)
    lineage.claim(7)
    lineage.claim(10)
    assert lineage.judge(11, 7, 3) is Verdict.ACCEPTED


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 20), st.integers(1, 4))), max_size=40))
def test_what_is_accepted_is_each_term_from_its_first_record_on_without_a_hole(log):
    lineage, accepted = Lineage(), []
    for offset, record in enumerate(log):
        if record is None:
            lineage.claim(offset)
        elif record[0] <= lineage.hi and lineage.judge(offset, *record) is Verdict.ACCEPTED:
            accepted.append(record)
    assert accepted == sorted(accepted)
    for term in {term for term, _ in accepted}:
        seqs = [seq for each, seq in accepted if each == term]
        assert seqs == list(range(1, len(seqs) + 1))


def started(author: str = "a.1", *, led: bool = True) -> Election:
    election = Election(author, TIMING, random.Random(1))
    if led:
        election.claim_read(0, "b", "b.1", 0.0)
    election.start(0.0)
    return election


def test_whoever_hears_nothing_looks_first_and_then_claims():
    election = started()
    assert election.wish(4.9, 1) is Wish.NOTHING
    now = election.due()
    assert 5.0 <= now <= 7.0
    assert election.wish(now, 1) is Wish.LOOK
    assert election.wish(now, 1) is Wish.NOTHING  # no answer so far
    election.looked(3, now)
    assert election.wish(now, 2) is Wish.NOTHING  # one record is still to be read
    assert election.wish(now, 3) is Wish.CLAIM
    assert election.wish(now, 3) is Wish.NOTHING  # it is on its way


def test_a_node_that_slept_finds_what_was_written_meanwhile_and_does_not_claim():
    election = started()
    assert election.wish(1000.0, 1) is Wish.LOOK
    election.looked(2, 1000.0)
    assert election.record_read(1, 0, 1, 1000.0) is Verdict.ACCEPTED
    assert election.wish(1000.0, 2) is Wish.NOTHING
    assert election.primary(1000.0) == "b"


def test_where_the_log_does_not_answer_it_is_asked_again():
    election = started()
    assert election.wish(10.0, 1) is Wish.LOOK
    election.looked(None, 10.0)
    assert election.wish(10.0, 1) is Wish.NOTHING
    assert election.wish(election.due(), 1) is Wish.LOOK


def test_a_primary_that_cannot_reach_the_log_does_not_say_that_it_leads():
    election = started(led=False)
    election.claim_read(0, "a", "a.1", 0.0)
    election.next_record(0.0)
    for _ in range(3):
        now = max(10.0, election.due())
        assert election.wish(now, 1) is Wish.LOOK
        election.looked(None, now)
        assert not election.leads(now)
        assert election.primary(now) == ""


def test_a_claim_that_is_lost_is_made_again():
    election = started()
    assert election.wish(10.0, 1) is Wish.LOOK
    election.looked(1, 10.0)
    assert election.wish(10.0, 1) is Wish.CLAIM
    later = election.due()
    assert later >= 15.0
    assert election.wish(later, 1) is Wish.LOOK


def test_who_reads_its_own_claim_leads_until_it_reads_a_later_one():
    election = started()
    assert not election.leads(0.0)
    assert election.claim_read(5, "a", "a.1", 10.0)
    assert election.leads(10.0)
    assert election.next_record(10.0) == (5, 1)
    assert not election.claim_read(7, "b", "b.1", 11.0)
    assert not election.leads(11.0)
    assert election.primary(11.0) == "b"


def test_a_claim_of_an_earlier_run_of_the_node_is_not_its_own():
    election = started("a.2")
    assert not election.claim_read(5, "a", "a.1", 10.0)
    assert not election.leads(10.0)


def test_a_primary_says_that_it_is_there_unless_something_is_on_its_way():
    election = started(led=False)
    election.claim_read(0, "a", "a.1", 0.0)
    assert election.wish(0.0, 1) is Wish.BEAT  # at once, so that others know
    assert election.next_record(0.0) == (0, 1)
    assert election.wish(3.0, 1) is Wish.NOTHING
    assert election.record_read(1, 0, 1, 3.0) is Verdict.ACCEPTED
    assert election.due() == 1.0
    assert election.wish(3.0, 2) is Wish.BEAT


def test_a_primary_whose_records_do_not_come_back_takes_no_requests_and_claims_again():
    election = started(led=False)
    election.claim_read(0, "a", "a.1", 0.0)
    election.next_record(0.0)
    assert election.leads(4.9)
    assert not election.leads(5.0)
    assert election.primary(5.0) == ""
    assert election.wish(7.0, 1) is Wish.LOOK


def test_a_primary_that_loses_a_record_claims_at_once():
    election = started(led=False)
    election.claim_read(0, "a", "a.1", 0.0)
    assert election.record_read(1, 0, 2, 0.5) is Verdict.GAP
    assert not election.leads(0.5)
    assert election.wish(0.5, 2) is Wish.LOOK


def test_where_nobody_ever_led_nobody_is_waited_for():
    election = started(led=False)
    assert election.due() <= TIMING.jitter_seconds
