import threading
from multiprocessing.connection import Pipe

import msgspec
import pytest

from mainstem.serve import BadQuery
from mainstem.serve.columns import TableShape
from mainstem.serve.sql_child import Child, _told
from tests.serve.support import TOPIC, applied_after, rows_of
from tests.serve.test_sql import FLIGHT


def test_it_answers_what_it_is_asked_and_ends_when_nobody_asks(tmp_path):
    ours, theirs = Pipe()
    thread = threading.Thread(target=Child(theirs).run)
    thread.start()

    def ask(method, *arguments):
        ours.send((7, method, arguments))
        return ours.recv()

    number, (applied, memory), error, stopped = ask(
        "open", tmp_path, {TOPIC: TableShape(FLIGHT, "stream")}, "100MB", 1, 1
    )
    assert (number, applied, memory >> 20, error, stopped) == (7, None, 95, None, False)
    changes = rows_of(3)
    told = [msgspec.structs.astuple(each) for each in changes]
    assert ask("apply", told, applied_after(changes)) == (7, None, None, False)
    assert ask("query", f"SELECT count(*) FROM {TOPIC}", (), 10, 10.0)[1].rows == [(3,)]
    assert isinstance(ask("query", "SELECT nothing", (), 10, 10.0)[2], BadQuery)
    assert ask("close")[2] is None
    ours.close()
    thread.join(30)
    assert not thread.is_alive()


class Unsendable(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def test_an_error_that_cannot_be_sent_is_told_by_its_name():
    error = KeyError("x")
    assert _told(error) is error
    assert "KeyError" in error.__notes__[0]
    with pytest.raises(RuntimeError, match="Unsendable: 1"):
        raise _told(Unsendable(1, 2))
