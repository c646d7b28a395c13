import random

import pytest

from mainstem.replicate.election import Lineage, Timing
from mainstem.replicate.errors import NotApplied, NotPrimary, TooLarge, Unreadable
from mainstem.replicate.primary_backup import PrimaryBackup
from mainstem.replicate.records import Answer, Beat, Claim, Operation, Request, Result, decode, encode
from tests.replicate.test_machine import Sums

TIMING = Timing(1.0, 5.0, 0.0)


def replica(node, **options):
    return PrimaryBackup(node, Sums, timing=TIMING, draw=random.Random(1), author=f"{node}.1", **options)


class Log:
    """A list of values that replicas append to and read."""

    def __init__(self, *replicas):
        self.values, self.replicas, self.now = [], replicas, 0.0

    def send(self):
        for each in self.replicas:
            self.values += each.take_appends()

    def read(self, *replicas):
        for each in replicas or self.replicas:
            while each.position < len(self.values):
                each.receive(each.position, self.values[each.position], self.now)

    def turn(self):
        self.send()
        self.read()


def led(*others, **options):
    """A primary, its backups and their log."""
    nodes = [replica("n1", **options), *(replica(name, **options) for name in others)]
    log = Log(*nodes)
    for node in nodes:
        node.start(0.0)
    claim(log, nodes[0])
    log.read()
    return log, *nodes


def claim(log, node):
    log.values.append(encode(Claim(node.node, node.author)))


def answers(node):
    return {each.ticket: each.answer for each in node.take_settled()}


def test_an_election_from_nothing():
    nodes = [replica("n1"), replica("n2")]
    log = Log(*nodes)
    for node in nodes:
        node.start(0.0)
    assert nodes[0].tick(0.0)  # the node is to ask where the log ends
    nodes[0].looked(0, 0.0)
    assert not nodes[0].tick(0.0)
    log.turn()
    assert [node.status(0.0)["role"] for node in nodes] == ["primary", "backup"]
    assert [node.status(0.0)["primary"] for node in nodes] == ["n1", "n1"]
    nodes[0].tick(0.0)
    log.turn()
    assert [decode(0, each) for each in log.values] == [Claim("n1", "n1.1"), Beat(0, 1)]
    assert nodes[1].due() == 5.0


def test_the_log_has_results_and_the_backups_assign_them():
    log, first, second = led("n2")
    tickets = [first.write(["x", number], None, 0.0) for number in (5, 2)]
    log.send()
    assert first.take_settled() == []  # nothing is answered before it is read back
    assert first.machine.query("x") == Answer(0)
    assert [decode(0, each).changes for each in log.values[1:]] == [["x", 5], ["x", 7]]
    log.read()
    assert answers(first) == dict(zip(tickets, (Answer(5), Answer(7)), strict=True))
    assert second.machine.query("x") == Answer(7)


def test_a_backup_says_who_the_primary_is():
    log, _, second = led("n2")
    for ask in (
        lambda: second.write(["x", 1], None, 0.0),
        lambda: second.read("x", 0.0),
        lambda: second.open_client(0.0),
    ):
        with pytest.raises(NotPrimary) as found:
            ask()
        assert found.value.primary == "n1"
    with pytest.raises(NotPrimary) as found:
        second.read("x", 5.0)
    assert found.value.primary == ""  # nothing was heard of it for too long
    assert log.values[1:] == []


def test_a_read_is_answered_when_the_primary_reads_its_own_word():
    log, first, _ = led("n2")
    first.write(["x", 5], None, 0.0)
    ticket = first.read("x", 0.0)
    log.turn()
    assert answers(first)[ticket] == Answer(5)


def test_who_is_deposed_says_what_is_not_carried_out_and_its_late_record_counts_nowhere():
    log, first, second = led("n2")
    first.write(["x", 5], None, 0.0)
    log.turn()
    first.take_settled()
    late = first.write(["x", 1], None, 0.0)
    [record] = first.take_appends()  # it is under way while first is stopped
    claim(log, second)
    log.read(second)
    second.write(["x", 10], None, 0.0)
    log.send()
    log.values.append(record)
    log.read()
    [told] = first.take_settled()
    assert (told.ticket, type(told.error)) == (late, NotApplied)
    assert first.machine.query("x") == second.machine.query("x") == Answer(15)
    assert first.discarded == second.discarded == 1
    with pytest.raises(NotPrimary):
        first.write(["x", 1], None, 0.0)


def test_without_a_fence_the_late_record_undoes_what_was_acknowledged():
    log, first, second = led("n2")
    unfenced = [PrimaryBackup(name, Sums, timing=TIMING, lineage=Lineage(fenced=False)) for name in ("n1", "n2")]
    first.write(["x", 5], None, 0.0)
    log.turn()
    first.write(["x", 1], None, 0.0)
    [record] = first.take_appends()
    claim(log, second)
    log.read(second)
    second.write(["x", 10], None, 0.0)
    log.send()
    log.values.append(record)
    log.replicas = unfenced
    log.read()
    assert {node.machine.query("x").value for node in unfenced} == {6}


def test_a_primary_that_is_elected_again_starts_from_what_was_accepted():
    log, first, second = led("n2")
    lost = first.write(["x", 100], None, 0.0)
    first.take_appends()
    claim(log, first)
    log.read()
    assert {each.ticket for each in first.take_settled()} == {lost}
    first.write(["x", 1], None, 0.0)
    log.turn()
    assert second.machine.query("x") == Answer(1)


def test_after_a_lost_record_the_term_is_over():
    log, first, second = led("n2")
    tickets = [first.write(["x", number], None, 0.0) for number in (1, 2, 4)]
    log.values += first.take_appends()[1:]
    log.read()
    assert [(each.ticket, type(each.error)) for each in first.take_settled()] == [
        (each, NotApplied) for each in tickets
    ]
    assert second.machine.query("x") == Answer(0)
    assert second.status(0.0)["primary"] == ""
    assert first.tick(0.0)  # it wants to claim at once


def test_a_request_is_carried_out_once_also_by_the_next_primary():
    log, first, second = led("n2")
    first.open_client(0.0)
    log.turn()
    client = first.take_settled()[0].answer.value
    assert client == 1  # the offset of its record
    first.write(["x", 5], Request(client, 1), 0.0)
    log.turn()
    claim(log, second)
    log.read()
    ticket = second.write(["x", 5], Request(client, 1), 0.0)
    assert second.take_settled() == []
    log.turn()
    assert answers(second) == {ticket: Answer(5)}
    assert first.machine.query("x") == Answer(5)


def test_a_repeat_is_answered_no_sooner_than_what_it_repeats_is_read_back():
    log, first = led()
    first.open_client(0.0)
    log.turn()
    first.take_settled()
    for _ in range(2):
        first.write(["x", 5], Request(1, 1), 0.0)
    log.values += first.take_appends()[1:]  # the first is lost
    log.read()
    assert [type(each.error) for each in first.take_settled()] == [NotApplied, NotApplied]


def test_a_refusal_is_logged_since_it_is_an_answer():
    log, first = led()
    ticket = first.write(["x", 0], None, 0.0)
    log.turn()
    assert answers(first) == {ticket: Answer(error="expected a number other than 0")}
    assert decode(1, log.values[1]) == Result(0, 1, Answer(error="expected a number other than 0"))


def test_what_is_too_large_leaves_no_gap():
    log, first = led()
    with pytest.raises(TooLarge):
        first.write(["x" * 600_000, 1], None, 0.0)
    first.write(["x", 5], None, 0.0)
    log.turn()
    assert first.machine.query("x") == Answer(5)
    assert not first.election.lineage.dead


class Fails(Sums):
    """Cannot assign what it changes where the number is 13, and has changed something by then."""

    def execute(self, operation):
        name, number = operation
        return super().execute(operation) if number != 14 else (0, [name, object()])

    def assign(self, changes):
        super().assign(changes)
        if changes[1] == 13:
            raise KeyError("x")


def test_what_the_service_cannot_assign_is_an_answer_and_stops_nobody():
    first, second = (PrimaryBackup(name, Fails, timing=TIMING, author=f"{name}.1") for name in ("n1", "n2"))
    log = Log(first, second)
    for node in (first, second):
        node.start(0.0)
    claim(log, first)
    log.read()
    first.open_client(0.0)
    log.turn()
    first.take_settled()
    first.write(["y", 1], None, 0.0)
    ticket = first.write(["x", 13], Request(1, 1), 0.0)
    with pytest.raises(NotPrimary):  # its copy may have half of it, until one is taken anew
        first.write(["x", 1], None, 0.0)
    log.turn()
    failed = Answer(error="the service failed: KeyError: 'x'")
    assert answers(first)[ticket] == failed
    again, other = first.write(["x", 13], Request(1, 1), 0.0), first.write(["x", 2], None, 0.0)
    log.turn()
    assert answers(first) == {again: failed, other: Answer(2)}
    ticket = first.write(["x", 14], None, 0.0)
    log.turn()
    assert answers(first)[ticket].error.startswith("the service failed: TypeError: ")
    assert first.machine.dump() == second.machine.dump()
    assert not first.election.lineage.dead


def test_a_primary_assigns_what_its_backups_read():
    """Its own tuple could be a key, the list that it becomes in the log cannot."""

    class Pairs(Sums):
        def execute(self, operation):
            return 0, [tuple(operation), 1]

    first = PrimaryBackup("n1", Pairs, timing=TIMING, author="n1.1")
    log = Log(first)
    first.start(0.0)
    claim(log, first)
    log.read()
    first.write(["x", "y"], None, 0.0)
    log.turn()
    assert first.take_settled()[0].answer.error.startswith("the service failed: TypeError: unhashable")


def test_without_memory_nothing_is_appended_and_the_copy_is_taken_anew():
    class Full(Sums):
        def assign(self, changes):
            if self.sums.get("full") == 1 and changes[0] == "x":
                raise MemoryError
            super().assign(changes)

    first = PrimaryBackup("n1", Full, timing=TIMING, author="n1.1")
    log = Log(first)
    first.start(0.0)
    claim(log, first)
    log.read()
    first.write(["full", 1], None, 0.0)
    with pytest.raises(MemoryError):
        first.write(["x", 1], None, 0.0)
    log.turn()
    assert len(log.values) == 2
    first.write(["full", 1], None, 0.0)
    log.turn()
    first.write(["x", 1], None, 0.0)
    log.turn()
    assert first.machine.query("x") == Answer(1)


def test_nobody_is_told_what_nobody_waits_for():
    log, first = led()
    first.forget(first.write(["x", 5], None, 0.0))
    log.turn()
    assert first.take_settled() == []
    assert first.machine.query("x") == Answer(5)


def test_a_replica_that_only_reads_says_nothing():
    node = replica("n1")
    assert not node.tick(1e9)
    assert node.take_appends() == []


def test_a_dump_goes_on_where_it_was():
    log, first, second = led("n2")
    first.write(["x", 5], None, 0.0)
    log.turn()
    other = replica("n3")
    other.load(second.dump())
    first.write(["x", 1], None, 0.0)
    log.turn()
    log.read(other)
    assert other.dump() == second.dump()
    assert other.status(0.0)["term"] == 0


def test_a_topic_of_the_other_kind_is_refused():
    with pytest.raises(Unreadable, match="found an operation"):
        replica("n1").receive(0, encode(Operation("n1.1", 1, ["x", 1])), 0.0)
