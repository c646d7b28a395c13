"""Answers with parts of files in them: given to the socket straight away, as far as it takes them.

Of what it does not take, one part is read and is the transport's; the others wait until that has left.
"""

import asyncio
import fcntl
import select
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from mainstem.log import FileSlice

PART: Final = 65_536
_HUNG_UP: Final = getattr(select, "POLLRDHUP", select.POLLHUP)  # the former is Linux's
_MOST_IN_A_TURN: Final = 1_048_576


def has_slices(chunks: Sequence[Any]) -> bool:
    """Some of them are not in memory."""
    return any(isinstance(chunk, FileSlice) for chunk in chunks)


def descriptor_of(transport: asyncio.Transport) -> int:
    """Of its socket."""
    return int(transport.get_extra_info("socket").fileno())


def queued_bytes(descriptor: int) -> int:
    """What a socket was given and the other end has not acknowledged; 0 where the system does not say that."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def has_hung_up(descriptor: int) -> bool:
    """Who is at the other end of a socket has closed it, or sends no more, whatever has not been read yet."""
    poll = select.poll()
    poll.register(descriptor, _HUNG_UP)
    return bool(poll.poll(0))


def send(transport: asyncio.Transport, chunks: deque[Any]) -> None:
    """Take from the chunks what the socket takes, and what the transport is given then: at most one that is read.

    Raises:
        OSError, CorruptData: of a file. What is wrong with the socket is for its transport to find.
    """
    descriptor = descriptor_of(transport)
    while chunks:
        chunk, sent = chunks.popleft(), 0
        if not transport.get_write_buffer_size():  # nothing is to leave before it
            if isinstance(chunk, FileSlice):
                sent = chunk.send(descriptor)
            else:
                sent = _send(descriptor, chunk, more=bool(chunks))
        if sent == len(chunk):
            continue
        if isinstance(chunk, FileSlice):
            transport.write(chunk.read(sent))
            return
        transport.write(bytes(memoryview(chunk)[sent:]))


def send_encrypted(transport: asyncio.Transport, chunks: deque[Any], is_paused: Callable[[], bool]) -> None:
    """Take from the chunks what the socket takes, and some parts of them more: what is encrypted is given to another
    transport below, whose buffer nobody sees but by its pausing this one.
    """
    left = _MOST_IN_A_TURN
    while chunks and left > 0 and not is_paused():
        chunk = memoryview(chunks.popleft())
        part, rest = chunk[:PART], chunk[PART:]
        if rest:
            chunks.appendleft(rest)
        transport.write(part)
        left -= len(part)


def _send(descriptor: int, chunk: bytes, *, more: bool) -> int:
    connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
    try:
        connected.setblocking(False)  # it begins with the default timeout of the program, if that has one
        return connected.send(chunk, socket.MSG_MORE if more else 0)
    except OSError:
        return 0
    finally:
        connected.detach()  # the descriptor is the transport's
