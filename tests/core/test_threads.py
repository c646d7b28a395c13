import gc
import subprocess
import sys
import threading
import time

import pytest

from mainstem.core.threads import LastingThreads


def threads_named(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_a_call_runs_elsewhere_and_its_error_comes_back():
    threads = LastingThreads(1, "one")
    assert threads.submit(threading.get_ident).result() != threading.get_ident()
    assert threads.submit(divmod, 7, 2).result() == (3, 1)
    assert isinstance(threads.submit(divmod, 1, 0).exception(), ZeroDivisionError)
    threads.shutdown()
    assert not threads_named("one")
    with pytest.raises(RuntimeError, match="the threads one are shut down"):
        threads.submit(int)


def test_as_many_run_at_a_time_as_there_may_be_and_none_is_started_beside_an_idle_one():
    threads, together = LastingThreads(3, "three"), threading.Barrier(3)
    for _ in range(20):
        threads.submit(int).result()
        while not threads._idle._value:  # the thread is about to wait again
            time.sleep(0.001)
    assert len(threads_named("three")) == 1
    assert sorted(each.result(30) for each in [threads.submit(together.wait) for _ in range(6)]) == [0, 0, 1, 1, 2, 2]
    assert len(threads_named("three")) == 3
    threads.shutdown()


def test_what_was_taken_is_done_before_they_are_shut_down_and_what_is_cancelled_is_not():
    threads, go, done = LastingThreads(1, "one"), threading.Event(), []
    threads.submit(go.wait)
    threads.submit(done.append, 1)
    cancelled = threads.submit(done.append, 2)
    assert cancelled.cancel()
    threads.submit(done.append, 3)
    threading.Timer(0.05, go.set).start()
    threads.shutdown()
    assert done == [1, 3]


def test_those_that_nobody_shuts_down_end_with_what_held_them():
    threads = LastingThreads(2, "left")
    threads.submit(int).result()
    del threads
    gc.collect()
    for thread in threads_named("left"):
        thread.join(30)
    assert not threads_named("left")


def test_where_no_other_can_be_started_the_first_one_does_all(monkeypatch):
    threads = LastingThreads(4, "few")

    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert [each.result(30) for each in [threads.submit(abs, -n) for n in range(10)]] == list(range(10))
    threads.shutdown()


def test_they_outlive_the_main_thread_and_do_not_hold_up_the_end():
    program = (
        "import atexit, threading, time\n"
        "from mainstem.core.threads import LastingThreads\n"
        "threads = LastingThreads(2, 'lasting')\n"
        "def last():\n"
        "    threading.main_thread().join()\n"
        "    print(threads.submit(divmod, 7, 2).result())\n"
        "threading.Thread(target=last).start()\n"
        "atexit.register(lambda: print(threads.submit(divmod, 9, 2).result()))\n"
        "threads.submit(time.sleep, 600)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("(3, 1)\n(4, 1)\n", "")
