import pytest

from mainstem.replicate import checkpoint
from mainstem.replicate.checkpoint import Checkpoint, Identity
from mainstem.replicate.errors import OtherLog
from mainstem.replicate.state_machine import StateMachine
from tests.replicate.test_machine import Sums

IDENTITY = Identity("log-1", "topic-1")


@pytest.fixture
def written(tmp_path):
    replica = StateMachine("n1", Sums, nodes=3, digest_every=0)
    replica.receive(0, b'{"type":"opening","author":"a","number":1}', 0.0)
    replica.receive(1, b'{"type":"operation","author":"a","number":2,"operation":["x",5],"request":[0,1]}', 0.0)
    checkpoint.write(tmp_path / "new" / "directory", checkpoint.encode(Checkpoint(IDENTITY, replica.dump())))
    return tmp_path / "new" / "directory", replica.dump()


def test_what_is_written_is_read(written):
    directory, dump = written
    assert checkpoint.read(directory, IDENTITY, "state-machine") == dump


def test_where_nothing_is_there_is_none(tmp_path):
    assert checkpoint.read(tmp_path, IDENTITY, "state-machine") is None


@pytest.mark.parametrize(
    ("identity", "kind"),
    [
        (Identity("log-2", "topic-1"), "state-machine"),
        (Identity("log-1", "topic-2"), "state-machine"),
        (IDENTITY, "primary-backup"),
    ],
)
def test_one_of_another_log_is_refused(written, identity, kind):
    with pytest.raises(OtherLog, match="found log log-1, topic id topic-1, state-machine"):
        checkpoint.read(written[0], identity, kind)


def test_a_damaged_one_counts_as_none(written):
    path = written[0] / checkpoint.NAME
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at])
        assert checkpoint.read(written[0], IDENTITY, "state-machine") is None
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert checkpoint.read(written[0], IDENTITY, "state-machine") is None


def test_one_of_another_version_counts_as_none(written, monkeypatch):
    monkeypatch.setattr(checkpoint, "_VERSION", 2)
    assert checkpoint.read(written[0], IDENTITY, "state-machine") is None


def test_what_is_removed_is_gone(written):
    checkpoint.remove(written[0])
    checkpoint.remove(written[0])
    assert checkpoint.read(written[0], IDENTITY, "state-machine") is None
