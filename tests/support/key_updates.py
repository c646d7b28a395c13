"""A client of TLS 1.3 that has new keys made without end, which no Python does: OpenSSL's functions by ctypes."""

import _ssl
import ctypes
import socket
from contextlib import suppress

_OPENSSL = ctypes.CDLL(_ssl.__file__)  # finds what it is linked with
for _name, _result, _arguments in (
    ("TLS_client_method", ctypes.c_void_p, []),
    ("SSL_CTX_new", ctypes.c_void_p, [ctypes.c_void_p]),
    ("SSL_CTX_free", None, [ctypes.c_void_p]),
    ("SSL_new", ctypes.c_void_p, [ctypes.c_void_p]),
    ("SSL_free", None, [ctypes.c_void_p]),
    ("SSL_set_fd", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    ("SSL_connect", ctypes.c_int, [ctypes.c_void_p]),
    ("SSL_do_handshake", ctypes.c_int, [ctypes.c_void_p]),
    ("SSL_key_update", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    ("SSL_write", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
):
    _function = getattr(_OPENSSL, _name)
    _function.restype, _function.argtypes = _result, _arguments


def updates_until_cut_off(port: int, most: int, *, data_every: int = 0) -> int:
    """How many it sends before its connection ends; no more than `most`. `data_every`: after so many comes a byte of a
    request of a megabyte.
    """
    context = _OPENSSL.SSL_CTX_new(_OPENSSL.TLS_client_method())
    session = _OPENSSL.SSL_new(context)
    with socket.create_connection(("127.0.0.1", port)) as connected:
        _OPENSSL.SSL_set_fd(session, connected.fileno())
        assert _OPENSSL.SSL_connect(session) == 1
        sent = 0
        if data_every:
            assert _OPENSSL.SSL_write(session, (1 << 20).to_bytes(4), 4) == 4
        while sent < most and _OPENSSL.SSL_key_update(session, 0) == 1 and _OPENSSL.SSL_do_handshake(session) == 1:
            sent += 1
            if data_every and not sent % data_every and _OPENSSL.SSL_write(session, b"x", 1) != 1:
                break
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
    _OPENSSL.SSL_free(session)
    _OPENSSL.SSL_CTX_free(context)
    return sent
