"""What a connection may send that is no body, how long it may take for the head of a request, and for its answer.

uvicorn takes headers without end, and waits for ever: for the rest of a head, and for who does not read an answer.
Bodies have bounds of their own.
"""

import asyncio
import contextlib
import fcntl
import sys
import termios
from collections.abc import Sized
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _OneAfterTheOther(FlowControl):
    """Reads nothing while requests wait for their turn: uvicorn does, with each answer and each body that it takes."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection that sends too much beside bodies, or too many requests before it has their answers, or that is
    too slow to begin, or to end, a request, or that reads nothing of its answer.

    A read from the socket, of some 256 KiB at most, counts only when a head, a body or a request does not end in it.
    """

    head_bytes = 64 << 10
    head_seconds = 30.0
    waiting_requests = 100  # one read can hold thousands
    unread_seconds = 30.0

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._beside = 0  # bytes since the last end of a head, part of a body, or end of a request
        self._in_body = False
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None  # while something of an answer waits here to be sent
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # writing is paused with the first byte that has to wait here
        self.flow = _OneAfterTheOther(transport, self.pipeline)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._come()
        self._end_reading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._beside += len(data)
        if not self._in_body:
            self._wait()
        super().data_received(data)
        if self._beside > self.head_bytes and not self.transport.is_closing():
            if not self._is_answering():
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_reading()

    def on_headers_complete(self) -> None:
        self._come()
        self._in_body = True
        if len(self.pipeline) < self.waiting_requests:
            super().on_headers_complete()
        else:
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._come()
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body:  # nobody reads the rest
            self._wait()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.head_seconds, self._late)

    def _come(self) -> None:
        self._beside = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._is_answering():
            self._wait()
        else:
            self.transport.close()

    def _await_reading(self) -> None:
        self._unread = self._sent_and_unread()
        self._reading = self.loop.call_later(self.unread_seconds, self._look)

    def _look(self) -> None:
        if self._sent_and_unread() < self._unread:
            self._end_reading()
            self._await_reading()
        else:
            self.transport.abort()  # closed, it would wait until all is sent

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _sent_and_unread(self) -> int:
        """Bytes that wait here, and those that the kernel has yet to bring over: it takes more from us only when a
        third of its own are gone, which are some megabytes.
        """
        waiting = bytearray(4)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, waiting)
        return self.transport.get_write_buffer_size() + int.from_bytes(waiting, sys.byteorder)
