import signal
import threading

import pytest

from mainstem.standalone.processes import stop_on_signals


@pytest.fixture(autouse=True)
def keep_handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_a_stop(number):
    stop = stop_on_signals()
    assert isinstance(stop, threading.Event)
    assert not stop.is_set()
    signal.raise_signal(number)
    assert stop.wait(5)
