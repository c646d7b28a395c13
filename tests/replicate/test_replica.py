"""What both kinds have in common; what they do: test_state_machine.py, test_primary_backup.py."""

import msgspec
import pytest

from mainstem.replicate.errors import Unreadable
from mainstem.replicate.primary_backup import PrimaryBackup
from mainstem.replicate.replica import ReplicaDump
from mainstem.replicate.state_machine import StateMachine
from tests.replicate.test_machine import Sums


@pytest.fixture(params=["state-machine", "primary-backup"])
def replica(request):
    made = StateMachine("n1", Sums, nodes=3) if request.param == "state-machine" else PrimaryBackup("n1", Sums)
    assert made.kind == request.param
    return made


def test_each_run_of_a_node_is_another_author():
    assert StateMachine("n1", Sums, nodes=3).author != StateMachine("n1", Sums, nodes=3).author
    assert PrimaryBackup("n1", Sums).author.startswith("n1.")


def test_an_unreadable_record_leaves_the_position_where_it_is(replica):
    replica.reached(5)
    with pytest.raises(Unreadable):
        replica.receive(5, b"?", 0.0)
    assert replica.position == 5


def test_markers_take_offsets(replica):
    replica.reached(5)
    replica.reached(3)
    assert replica.position == 5


def test_a_dump_is_json_and_back(replica):
    dump = replica.dump()
    assert msgspec.json.decode(msgspec.json.encode(dump), type=ReplicaDump) == dump
