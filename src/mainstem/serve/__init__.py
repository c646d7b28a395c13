"""ANSWER: followers apply topics to local indexes; reads may wait for an offset (read your own writes)."""

from mainstem.serve.errors import (
    BadQuery,
    IndexDamaged,
    IndexInUse,
    IndexUnavailable,
    NotApplied,
    NotKept,
    OtherShape,
)
from mainstem.serve.index import Applied, Change, Index, Row, to_json

__all__ = [
    "Applied",
    "BadQuery",
    "Change",
    "Index",
    "IndexDamaged",
    "IndexInUse",
    "IndexUnavailable",
    "NotApplied",
    "NotKept",
    "OtherShape",
    "Row",
    "to_json",
]
