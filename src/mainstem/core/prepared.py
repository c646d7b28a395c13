"""The types that msgspec decodes into, made ready by one thread.

msgspec works out what a type is made of when it is first decoded into, and shows it to other threads before it is done:
two that decode into one type for the first time, at the same moment, end the process with a segmentation fault
(msgspec 0.22; `tests/core/test_prepared.py` shows it).
"""

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_prepared: set[object] = set()


def prepared(kind: type[T]) -> type[T]:
    """The type, for `type=` of a decoder or for `convert`: from here on any thread may decode into it."""
    if kind not in _prepared:
        with _lock:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)
    return kind
