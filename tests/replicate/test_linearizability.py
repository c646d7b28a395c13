"""What concurrent clients were told fits one order, in both models; reads of a node that lags do not, and are found."""

import asyncio
import contextlib
import itertools
import math
import random
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.arithmetic.operations import Arithmetic
from mainstem.replicate import (
    Node,
    NotApplied,
    NotPrimary,
    OutcomeUnknown,
    PrimaryBackup,
    Refused,
    StateMachine,
    Stopped,
    Timing,
)
from tests.support.linearizability import Call, linearizable, variables_are_linearizable

OPERATIONS = ("x+=1", "x*=2", "x-=3", "x/=2", "x/=0", "x?", "x?", "y+=1", "y*=3", "y?")


def counter(state, op):
    return (str(state + 1), state + 1) if op == "+" else (str(state), state)


def calls(*given):
    return [Call(*each) for each in given]


@pytest.mark.parametrize(
    ("history", "right"),
    [
        (calls(("+", "1", 0, 1), ("?", "1", 2, 3)), True),
        (calls(("+", "1", 0, 1), ("?", "0", 2, 3)), False),  # a read that is too old
        (calls(("+", "1", 0, 2), ("?", "0", 1, 3)), True),  # at the same time: either is right
        (calls(("+", "1", 0, 2), ("?", "1", 1, 3)), True),
        (calls(("+", None, 0), ("?", "0", 1, 2), ("?", "1", 3, 4)), True),  # carried out late
        (calls(("+", None, 0), ("?", "1", 1, 2), ("?", "0", 3, 4)), False),  # and not taken back
        (calls(("+", None, 0), ("?", "0", 1, 2)), True),  # or never
        (calls(("+", "1", 0, 1), ("+", "1", 0, 1)), False),  # a lost update
        (calls(("+", "2", 0, 9), ("+", "1", 1, 8), ("?", "1", 2, 3), ("?", "2", 4, 5)), True),
    ],
)
def test_the_checker_on_histories_of_few_calls(history, right):
    assert linearizable(history, counter, 0) is right


def brute_force(history, step, first):
    """Every order, tried."""
    some = [list(each) for each in itertools.chain.from_iterable(
        itertools.combinations([call for call in history if call.answer is None], count)
        for count in range(len(history) + 1)
    )]  # fmt: skip
    answered = [call for call in history if call.answer is not None]
    return any(_explains(order, step, first) for more in some for order in itertools.permutations([*answered, *more]))


def _explains(order: Iterable[Call], step, state):
    order = list(order)
    for number, call in enumerate(order):
        answer, state = step(state, call.op)
        if call.answer not in (None, answer):
            return False
        if any(later.answer is not None and later.ended < call.began for later in order[number + 1 :]):
            return False
    return True


@given(
    st.lists(
        st.tuples(st.sampled_from("+?"), st.sampled_from(["0", "1", "2", None]), st.integers(0, 5), st.integers(1, 4)),
        max_size=5,
    )
)
def test_the_checker_agrees_with_trying_every_order(drawn):
    history = [Call(op, answer, 2 * began, 2 * (began + length) + 1) for op, answer, began, length in drawn]
    assert linearizable(history, counter, 0) == brute_force(history, counter, 0)


def test_thousands_of_calls_are_checked_in_seconds():
    draw, state, history = random.Random(1), 0, []
    for number in range(5000):
        op = draw.choice("+?")
        answer, state = counter(state, op)
        history.append(Call(op, answer, number - draw.random() * 4, number + draw.random() * 4))
    assert linearizable(history, counter, 0)
    history[2500] = history[2500]._replace(answer="7")
    assert not linearizable(history, counter, 0)


def test_each_variable_is_checked_by_itself():
    history = calls(("x+=5", "5", 0, 1), ("y?", "0", 2, 3), ("x/=0", "x/=0: division by zero; x stays 5", 4, 5))
    assert variables_are_linearizable(history) == ""
    assert variables_are_linearizable([*history, Call("y?", "1", 6, 7)]) == "y"


def state_machine(name: str) -> StateMachine:
    return StateMachine(name, Arithmetic, nodes=3)


def primary_backup(name: str) -> PrimaryBackup:
    return PrimaryBackup(name, Arithmetic, timing=Timing(0.05, 0.4, 0.3))


async def ask(node: Node, op: str, **options) -> Call | None:
    """A call of one client; None where it is certain that it was not carried out."""
    began = time.monotonic()
    try:
        answered = await (node.read(op[:-1], **options) if op.endswith("?") else node.write(op))
    except (NotPrimary, NotApplied, Stopped):
        return None
    except OutcomeUnknown:
        return Call(op, None, began, math.inf)
    except Refused as error:
        return Call(op, str(error), began, time.monotonic())
    return Call(op, answered.value, began, time.monotonic())


async def client(nodes: list[Node], history: list[Call], seed: int, count: int) -> None:
    draw = random.Random(seed)
    while count:
        call = await ask(draw.choice(nodes), draw.choice(OPERATIONS))
        if call is None:
            await asyncio.sleep(0.01)
        else:
            count -= 1
            history.append(call)


@pytest.mark.parametrize("make", [state_machine, primary_backup])
def test_what_clients_are_told_while_nodes_leave_and_come_fits_one_order(connection, topic, make):
    async def scenario() -> list[Call]:
        history: list[Call] = []
        async with contextlib.AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(Node(connection, topic, make(f"n{each}"))) for each in (1, 2, 3)]
            async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
                for seed in range(6):
                    tasks.create_task(client(nodes, history, seed, 150))
                for at in (0, 1, 2):
                    while len(history) < 200 * (at + 1):
                        await asyncio.sleep(0.01)
                    await nodes[at].close()
                    nodes[at] = await stack.enter_async_context(Node(connection, topic, make(f"n{at + 1}")))
        return history

    history = asyncio.run(scenario())
    assert len(history) == 900
    assert variables_are_linearizable(history) == ""


@pytest.mark.parametrize("make", [state_machine, primary_backup])
def test_local_reads_of_a_node_that_lags_are_not_linearizable(connection, topic, make):
    async def scenario() -> tuple[list[Call], list[Call]]:
        async with (
            Node(connection, topic, make("n1")) as first,
            Node(connection, topic, make("n2")) as second,
        ):
            nodes, written = [first, second], []
            while not written:
                written = [call for call in [await ask(node, "x+=1") for node in nodes] if call]
                await asyncio.sleep(0.01)
            leads = next(node for node in nodes if node.status()["role"] in ("primary", "replica"))
            lags = second if leads is first else first
            receive, held = lags._receive, []
            lags._receive = lambda *arguments: held.append(arguments)
            call = None
            while call is None:
                call = await ask(leads, "x+=1")
            while not held:
                await asyncio.sleep(0.01)
            stale = await ask(lags, "x?", local=True)
            lags._receive = receive
            for arguments in held:
                lags._receive(*arguments)
            return [*written, call], [stale]

    right, stale = asyncio.run(scenario())
    assert variables_are_linearizable(right) == ""
    assert variables_are_linearizable([*right, *stale]) == "x"
