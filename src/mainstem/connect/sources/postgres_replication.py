"""The replication connection: messages in, confirmations out, and nothing confirmed but what the caller says.

psycopg2 opens the connection and starts the replication; from then on libpq is called directly. psycopg2's own reader
answers the server's keepalives with more than it was told is safe: it confirms the server's position when the last
message began below what was confirmed before. A message of a transaction that ran beside others may well begin there,
while an earlier commit is not in the log yet: a kill at that moment would lose it. See docs/decisions/postgres.md.

    server -> us   'w' | start i64 | WAL end i64 | time i64 | message          'k' | WAL end i64 | time i64 | reply u8
    us -> server   'r' | written i64 | flushed i64 | applied i64 | time i64 | reply u8 (1: answer me now)

https://www.postgresql.org/docs/16/protocol-replication.html
"""

import ctypes
import re
import select
import time
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

from mainstem.connect.sources.postgres_catalog import DatabaseUnavailable, quoted, translated
from mainstem.connect.sources.postgres_pgoutput import EPOCH_2000_US, CorruptReplicationMessage, format_lsn

_DATA, _KEEPALIVE, _STATUS = Struct(">cqqq"), Struct(">cqqB"), Struct(">cqqqqB")
_QUESTION_SECONDS = 0.25
_SILENCE_SECONDS = 10.0  # the server gives up on a receiver that is silent for wal_sender_timeout, 60 s by default


class ReplicationStream:
    """The messages of one slot. One thread uses it.

    Attributes:
        wal_end: how far the server has read its WAL, by its last word; what it had for us until there, it has sent.
        confirmed: the last LSN given to `confirm`.
        asked: the server wants to hear how far we are; it does not shut down before we have all that it has.
    """

    def __init__(self, connection: Any, *, slot: str, publication: str, lsn: int) -> None:
        self._connection = connection
        self._libpq = _library()
        self._handle = ctypes.c_void_p(connection.pgconn_ptr)
        self._buffer = ctypes.c_void_p()
        self._socket = connection.fileno()
        self._last_word = time.monotonic()
        self._last_question = 0.0
        self.wal_end = 0
        self.confirmed = lsn
        self.asked = False
        names = quoted(publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {format_lsn(lsn)} "
            f"(proto_version '1', publication_names '{names}', messages 'true')"
        )
        self._cursor = connection.cursor()
        with translated(f"start replication of slot {slot}"):
            self._cursor.start_replication_expert(command, decode=False)

    def receive(self) -> bytes | None:
        """The next message, or None when none has arrived yet.

        Raises:
            DatabaseUnavailable: the server ended the replication.
        """
        libpq, handle, buffer = self._libpq, self._handle, self._buffer
        while True:
            length = libpq.PQgetCopyData(handle, ctypes.byref(buffer), 1)
            if length == 0:
                if not libpq.PQconsumeInput(handle):
                    raise self._ended()
                length = libpq.PQgetCopyData(handle, ctypes.byref(buffer), 1)
                if length == 0:
                    self.speak()
                    return None
            if length < 0:
                raise self._ended()
            data = ctypes.string_at(buffer, length)
            libpq.PQfreemem(buffer)
            if data[:1] == b"w":
                if length < _DATA.size:
                    raise CorruptReplicationMessage(f"replication data of {length} bytes, expected {_DATA.size}")
                return data[_DATA.size :]
            self._keepalive(data)

    def wait(self, seconds: float) -> None:
        """Until something has arrived, at most so long."""
        select.select([self._socket], [], [], seconds)

    def confirm(self, lsn: int) -> None:
        """Tell the server that everything up to `lsn` is safe: it will never be sent again, and its WAL may go."""
        self.confirmed = max(self.confirmed, lsn)
        self._send_status()

    def ask(self) -> None:
        """Ask the server how far it has read its WAL, if it was not asked a moment ago: `wal_end` is its answer, once
        `receive` has seen it.
        """
        if time.monotonic() - self._last_question > _QUESTION_SECONDS:
            self._last_question = time.monotonic()
            self._send_status(reply=True)

    def speak(self) -> None:
        """Tell the server that we are alive, when we have been silent for some time."""
        if time.monotonic() - self._last_word > _SILENCE_SECONDS:
            self._send_status()

    def _keepalive(self, data: bytes) -> None:
        if len(data) != _KEEPALIVE.size or data[:1] != b"k":
            raise CorruptReplicationMessage(
                f"replication: expected data or a keepalive, found {data[:1]!r}, {len(data)} bytes"
            )
        _, self.wal_end, _, reply = _KEEPALIVE.unpack(data)
        if reply:
            self.asked = True
            self._send_status()

    def _send_status(self, *, reply: bool = False) -> None:
        now = time.time_ns() // 1000 - EPOCH_2000_US
        message = _STATUS.pack(b"r", self.confirmed, self.confirmed, self.confirmed, now, reply)
        if self._libpq.PQputCopyData(self._handle, message, len(message)) != 1 or self._libpq.PQflush(self._handle) < 0:
            raise self._ended()
        self._last_word = time.monotonic()

    def _ended(self) -> DatabaseUnavailable:
        """What libpq knows of the end: an error of the server, or of the connection."""
        result = self._libpq.PQgetResult(self._handle)
        text = b""
        if result:
            text = self._libpq.PQresultErrorMessage(result) or b""
            self._libpq.PQclear(result)
        text = text or self._libpq.PQerrorMessage(self._handle) or b"the server ended the replication"
        line = text.decode(errors="replace").strip().splitlines()
        return DatabaseUnavailable(f"replication: {line[0].removeprefix('ERROR:').strip() if line else 'ended'}")


@cache
def _library() -> ctypes.PyDLL:
    """The libpq that psycopg2 uses: a handle of one copy is nothing to another. None of the calls below blocks, so the
    interpreter is not released around them, which costs more than they do.
    """
    import psycopg2  # noqa: F401 - loads the library

    paths = re.findall(r"(/\S*libpq[^/\s]*\.so\S*)", Path("/proc/self/maps").read_text())
    library = ctypes.PyDLL(paths[0])
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    for name, result, arguments in (
        ("PQgetCopyData", number, [pointer, ctypes.POINTER(pointer), number]),
        ("PQputCopyData", number, [pointer, text, number]),
        ("PQconsumeInput", number, [pointer]),
        ("PQflush", number, [pointer]),
        ("PQgetResult", pointer, [pointer]),
        ("PQclear", None, [pointer]),
        ("PQresultErrorMessage", text, [pointer]),
        ("PQerrorMessage", text, [pointer]),
        ("PQfreemem", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
