import pytest

from mainstem.replicate.errors import Diverged, NotApplied, Unreadable
from mainstem.replicate.records import Answer, Beat, Claim, Digest, Request, decode, encode
from mainstem.replicate.state_machine import StateMachine
from tests.replicate.test_machine import Sums


def replica(node="n1", **options):
    made = StateMachine(node, Sums, **({"nodes": 3, "digest_every": 0, "author": f"{node}.1"} | options))
    made.start(0.0)
    return made


class Log:
    """A list of values that replicas append to and read."""

    def __init__(self, *replicas):
        self.values, self.replicas = [], replicas

    def turn(self):
        for each in self.replicas:
            self.values += each.take_appends()
        for each in self.replicas:
            while each.position < len(self.values):
                each.receive(each.position, self.values[each.position], 0.0)


def answers(node):
    return {each.ticket: each.answer for each in node.take_settled()}


def test_any_node_takes_operations_and_all_come_to_the_same_state():
    first, second = replica("n1"), replica("n2")
    log = Log(first, second)
    five, one = first.write(["x", 5], None, 0.0), second.write(["x", 1], None, 0.0)
    assert first.take_settled() == []  # nothing is answered before it is read back
    log.turn()
    assert answers(first) == {five: Answer(5)}
    assert answers(second) == {one: Answer(6)}
    assert first.machine.digest() == second.machine.digest()


def test_a_read_holds_what_was_in_the_log_before_it():
    first, second = replica("n1"), replica("n2")
    log = Log(first)
    first.write(["x", 5], None, 0.0)
    log.turn()
    log.replicas = (second,)
    assert second.machine.query("x") == Answer(0)
    ticket = second.read("x", 0.0)
    log.turn()
    assert answers(second) == {ticket: Answer(5)}


def test_a_request_that_is_sent_to_two_nodes_is_carried_out_once():
    first, second = replica("n1"), replica("n2")
    log = Log(first, second)
    first.open_client(0.0)
    log.turn()
    client = first.take_settled()[0].answer.value
    tickets = [node.write(["x", 5], Request(client, 1), 0.0) for node in (first, second)]
    log.turn()
    assert answers(first) | {0: None} == {tickets[0]: Answer(5), 0: None}
    assert answers(second) == {tickets[1]: Answer(5)}
    assert first.machine.query("x") == Answer(5)


def test_what_the_producer_sends_again_is_carried_out_once():
    node = replica()
    log = Log(node)
    node.write(["x", 5], None, 0.0)
    [value] = node.take_appends()
    log.values += [value, value]
    log.turn()
    assert node.machine.query("x") == Answer(5)


def test_what_is_overtaken_is_never_carried_out_and_its_sender_is_told():
    node = replica()
    log = Log(node)
    early, late = node.write(["x", 5], None, 0.0), node.write(["x", 1], None, 0.0)
    log.values += reversed(node.take_appends())
    log.turn()
    told = {each.ticket: each for each in node.take_settled()}
    assert told[late].answer == Answer(1)
    assert isinstance(told[early].error, NotApplied)


def test_nobody_is_told_what_nobody_waits_for():
    node = replica()
    log = Log(node)
    node.forget(node.write(["x", 5], None, 0.0))
    node.forget(999)
    log.turn()
    assert node.take_settled() == []
    assert node.machine.query("x") == Answer(5)


def test_a_dump_goes_on_where_it_was():
    node = replica(digest_every=3)
    log = Log(node)
    node.open_client(0.0)
    log.turn()
    client = node.take_settled()[0].answer.value
    for number in (1, 2):
        node.write(["x", 5], Request(client, number), 0.0)
    log.turn()
    other = replica("n2", digest_every=3)
    other.load(node.dump())
    for each in (node, other):
        each.receive(3, log.values[-1], 0.0)  # a duplicate by the producer, and by the client
        each.receive(4, log.values[-1].replace(b'"number":3', b'"number":4'), 0.0)
    assert other.dump().machine == node.dump().machine
    assert decode(0, other.take_appends()[0]).answers == decode(0, node.take_appends()[0]).answers


def test_a_service_that_is_not_deterministic_is_stopped_at_the_operation():
    class Drifts(Sums):
        def execute(self, operation):
            total, changes = super().execute(operation)
            return total, [changes[0], total + (total == 12)]

    good, other = replica("n1", digest_every=5), replica("n2", digest_every=5)
    bad = StateMachine("n3", Drifts, nodes=3, digest_every=5, author="n3.1")
    bad.start(0.0)
    log = Log(good, other)
    for _ in range(5):
        good.write(["x", 4], None, 0.0)
    log.turn()
    log.turn()
    assert [type(decode(0, each)) for each in log.values[5:]] == [Digest, Digest]
    log.replicas = (bad,)
    with pytest.raises(Diverged) as found:
        log.turn()
    assert found.value.offset == 3  # its answer is the first that tells; the state was off after the one before
    assert good.digests.disputed == -1


def test_who_only_reads_says_nothing():
    node = StateMachine("n1", Sums, nodes=3, digest_every=1)
    node.receive(0, encode(decode(0, b'{"type":"operation","author":"a","number":1,"operation":["x",1]}')), 0.0)
    assert node.take_appends() == []


@pytest.mark.parametrize("record", [Claim("n1", "n1.1"), Beat(0, 1)])
def test_a_topic_of_the_other_kind_is_refused(record):
    with pytest.raises(Unreadable, match="found a primary's record"):
        replica().receive(0, encode(record), 0.0)


def test_authors_are_forgotten_in_the_order_of_their_last_record(monkeypatch):
    monkeypatch.setattr("mainstem.replicate.state_machine._MOST_AUTHORS", 2)
    node = replica()
    for offset, author in enumerate("abcd"):
        node.receive(offset, b'{"type":"opening","author":"%s","number":1}' % author.encode(), 0.0)
    assert list(node._authors) == ["c", "d"]


def test_what_people_are_told():
    assert replica().status(0.0) == {"role": "replica", "operations": 0, "disputed": -1}
