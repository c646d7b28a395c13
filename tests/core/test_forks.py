import os
import signal
import socket

from mainstem.core.forks import keep_from_forks


class Sockets:
    def __init__(self, *sockets):
        self.sockets = sockets

    def descriptors(self):
        return [each.fileno() for each in self.sockets]


def test_a_fork_keeps_nothing_of_what_is_this_processes_alone():
    mine, other = socket.socketpair()
    other.settimeout(10)
    holder = Sockets(mine)
    keep_from_forks(holder)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        mine.close()
        assert other.recv(1) == b"", "nobody else holds it open"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        other.close()
