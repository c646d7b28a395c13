"""Answers with parts of files in them: given to the socket straight away, as far as it takes them.

What it does not take is read, and is the transport's, which writes it when the client goes on.
"""

import socket
from collections.abc import Sequence
from typing import Any

from mainstem.log import FileSlice


def has_slices(chunks: Sequence[Any]) -> bool:
    """Some of them are not in memory."""
    return any(isinstance(chunk, FileSlice) for chunk in chunks)


def read(chunks: Sequence[Any]) -> list[Any]:
    """All of them in memory.

    Raises:
        OSError, CorruptSegment: of a file.
    """
    return [chunk.read() if isinstance(chunk, FileSlice) else chunk for chunk in chunks]


def send(descriptor: int, chunks: Sequence[Any]) -> list[Any]:
    """Give them to a socket that does not block and has nothing else to send; what it does not take, in memory.

    Raises:
        OSError, CorruptSegment: of a file. What is wrong with the socket is for its transport to find.
    """
    connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
    try:
        for place, chunk in enumerate(chunks):
            sent = chunk.send(descriptor) if isinstance(chunk, FileSlice) else _send(connected, chunk, more=place < 2)
            if sent < len(chunk):
                rest = chunk.read(sent) if isinstance(chunk, FileSlice) else bytes(memoryview(chunk)[sent:])
                return [rest, *read(chunks[place + 1 :])]
    finally:
        connected.detach()  # the descriptor is the transport's
    return []


def _send(connected: socket.socket, chunk: bytes, *, more: bool) -> int:
    try:
        return connected.send(chunk, socket.MSG_MORE if more else 0)
    except OSError:
        return 0
