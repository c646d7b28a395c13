"""Kafka's error codes, and the tables of its messages: what all rooms take from kio.

kio tells hypothesis of its types where that is installed, as beside this project's tests, and imports it for that: half
a second of every process, more than all else that a client imports. So it is imported here, where it does not find it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _not_found(name: str) -> Iterator[None]:
    if name in sys.modules:  # it has cost what it costs
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules[name] = None  # so Python says that there is none
    try:
        yield
    finally:
        del modules[name]


with _not_found("hypothesis"):
    from kio.schema.errors import ErrorCode
    from kio.schema.index import api_key_map, schema_name_map
    from kio.static.constants import EntityType
    from kio.static.primitive import Records

__all__ = ["EntityType", "ErrorCode", "Records", "api_key_map", "schema_name_map"]
