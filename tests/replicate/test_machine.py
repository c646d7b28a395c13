import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.replicate.errors import Refused
from mainstem.replicate.machine import Effect, Machine
from mainstem.replicate.records import Answer, Request


class Sums:
    """A service for tests: sums by name."""

    def __init__(self):
        self.sums = {}

    def execute(self, operation):
        name, number = operation
        if number == 0:
            raise Refused("expected a number other than 0")
        total = self.sums.get(name, 0) + number
        return total, [name, total]

    def assign(self, changes):
        self.sums[changes[0]] = changes[1]

    def query(self, question):
        if question == "":
            raise Refused("expected a name")
        return self.sums.get(question, 0)

    def dump(self):
        return self.sums

    def load(self, dump):
        self.sums = dict(dump)


def apply(machine, operation, request=None):
    """As every node does: decide, and commit what is decided."""
    decided = machine.decide(operation, request)
    if isinstance(decided, Effect):
        machine.commit(decided)
        return decided.answer
    return decided


def test_an_operation_is_carried_out_when_it_is_committed():
    machine = Machine(Sums)
    effect = machine.decide(["x", 5], None)
    assert machine.query("x") == Answer(0)
    machine.commit(effect)
    assert machine.query("x") == Answer(5)


def test_a_refusal_is_an_answer_and_changes_nothing():
    machine = Machine(Sums)
    before = machine.digest()
    assert apply(machine, ["x", 0]) == Answer(error="expected a number other than 0")
    assert machine.query("") == Answer(error="expected a name")
    assert machine.digest() == before


def test_a_fault_of_the_service_is_an_answer():
    machine = Machine(Sums)
    assert apply(machine, "?") == Answer(
        error="the service failed: ValueError: not enough values to unpack (expected 2, got 1)"
    )
    assert machine.query(["x"]).error.startswith("the service failed: TypeError")


@pytest.mark.parametrize(("said", "told"), [("", "refused"), ("no \ud800", "no \\ud800")])
def test_a_refusal_has_a_text_that_can_be_logged(said, told):
    class Refuses(Sums):
        def execute(self, operation):
            raise Refused(said)

        query = execute

    machine = Machine(Refuses)
    assert apply(machine, ["x", 1]) == machine.query("x") == Answer(error=told)


@pytest.mark.parametrize("value", [object(), "\ud800", {1: 1, "a": 1, None: 2, (1,): 3}])
def test_an_answer_that_is_no_json_is_a_fault_and_changes_nothing(value):
    class Odd(Sums):
        def execute(self, operation):
            return value, operation

    machine = Machine(Odd)
    assert apply(machine, ["x", 1]).error.startswith("the service failed: ")
    assert machine.query("x") == Answer(0)


def test_without_memory_nothing_is_answered():
    class Full(Sums):
        def execute(self, operation):
            raise MemoryError

    with pytest.raises(MemoryError):
        Machine(Full).decide("?", None)


def test_a_request_is_carried_out_once_and_answered_alike():
    machine = Machine(Sums)
    machine.open_client(7)
    assert apply(machine, ["x", 5], Request(7, 1)) == Answer(5)
    assert apply(machine, ["x", 1], Request(7, 2)) == Answer(6)
    assert apply(machine, ["x", 5], Request(7, 1)) == Answer(5)
    assert apply(machine, ["x", 0], Request(7, 3)).error
    assert apply(machine, ["x", 9], Request(7, 3)).error  # the answer of this request, whatever is asked now
    assert machine.query("x") == Answer(6)


def test_requests_of_one_client_may_overtake_each_other():
    machine = Machine(Sums, window=3)
    machine.open_client(7)
    assert apply(machine, ["x", 1], Request(7, 3)) == Answer(1)
    assert apply(machine, ["x", 1], Request(7, 1)) == Answer(2)
    assert apply(machine, ["x", 1], Request(7, 3)) == Answer(1)


def test_what_may_have_been_carried_out_before_is_not_carried_out():
    machine = Machine(Sums, window=2, most_clients=2)
    for client in (7, 8):
        machine.open_client(client)
    for number in (1, 2, 3):
        apply(machine, ["x", 1], Request(7, number))
    assert apply(machine, ["x", 1], Request(7, 1)).unknown  # too old
    machine.open_client(9)  # pushes out 8, that has not written
    assert apply(machine, ["x", 1], Request(8, 1)).unknown
    assert apply(machine, ["x", 1], Request(7, 4)) == Answer(4)
    assert apply(machine, ["x", 1], Request(5, 1)).unknown  # of a client that nobody has opened


def test_a_decision_that_outlives_its_client_is_carried_out_and_not_remembered():
    machine = Machine(Sums, most_clients=1)
    machine.open_client(7)
    effect = machine.decide(["x", 1], Request(7, 1))
    machine.open_client(8)
    machine.commit(effect)
    assert machine.query("x") == Answer(1)
    assert apply(machine, ["x", 1], Request(7, 1)).unknown


@given(
    st.lists(st.tuples(st.sampled_from("xy"), st.integers(-2, 2), st.integers(1, 2), st.integers(1, 6)), max_size=30)
)
def test_one_who_executes_and_one_who_assigns_come_to_the_same_state(operations):
    """So do a clone in the middle, and one that sees every request twice."""
    executes, assigns = Machine(Sums, window=3), Machine(Sums, window=3)
    repeats = Machine(Sums, window=3)
    for machine in (executes, assigns, repeats):
        machine.open_client(1)
        machine.open_client(2)
    for name, number, client, request in operations:
        decided = executes.decide([name, number], Request(client, request))
        if isinstance(decided, Effect):
            executes.commit(decided)
            assigns.commit(decided)
        first = apply(repeats, [name, number], Request(client, request))
        assert apply(repeats, [name, number], Request(client, request)) == first
        executes = executes.clone()
    assert executes.dump() == assigns.dump() == repeats.dump()
    assert executes.digest() == assigns.digest() == repeats.digest()


def test_a_clone_goes_its_own_way():
    machine = Machine(Sums)
    machine.open_client(1)
    apply(machine, ["x", 1], Request(1, 1))
    other = machine.clone()
    apply(other, ["x", 1], Request(1, 2))
    assert (machine.query("x"), other.query("x")) == (Answer(1), Answer(2))
    assert apply(machine, ["x", 5], Request(1, 2)) == Answer(6)


@pytest.mark.parametrize("sums", [{}, {"x": 1, "y": 2}])
def test_the_hash_is_of_the_state_and_not_of_its_order(sums):
    machine, other = Machine(Sums), Machine(Sums)
    machine.service.load(sums)
    other.service.load(dict(reversed(sums.items())))
    assert machine.digest() == other.digest()
