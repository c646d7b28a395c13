import threading

from confluent_kafka import KafkaException

from mainstem.client.errors import BrokerUnavailable
from mainstem.serve import worker as module
from mainstem.serve.worker import Worker


def test_what_comes_while_it_works_is_done_once_and_at_the_end(monkeypatch):
    begun, go_on, done = threading.Semaphore(0), threading.Semaphore(0), []

    def work():
        begun.release()
        go_on.acquire()
        done.append(1)

    worker = Worker("w", work)
    worker.wake()
    begun.acquire()
    for _ in range(5):
        worker.wake()
    go_on.release(3)
    begun.acquire()
    worker.close(60)
    assert 2 <= len(done) <= 3


def test_what_has_failed_is_tried_again(monkeypatch):
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    failures, done = (
        [OSError("the disk is full"), BrokerUnavailable("no answer"), KafkaException("x"), KeyError("a bug")],
        threading.Event(),
    )

    def work():
        if failures:
            raise failures.pop()
        done.set()

    worker = Worker("w", work)
    worker.wake()
    assert done.wait(60)
    worker.close(60)
