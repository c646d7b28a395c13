"""The record batch: the one format that is the same on the wire and on disk. Bytes only, no I/O."""

from mainstem.records.batch import (
    HEADER,
    BatchHeader,
    Span,
    decode_header,
    decode_span,
    iter_headers,
    iter_spans,
    set_append_time,
    unpack_header,
)
from mainstem.records.errors import CorruptBatch, CorruptRecords, UnknownCompression
from mainstem.records.fingerprint import fingerprint, fingerprint_sum
from mainstem.records.marker import Marker, build_marker, decode_marker
from mainstem.records.record import Header, Record, build_batch, decode_records

__all__ = [
    "HEADER",
    "BatchHeader",
    "CorruptBatch",
    "CorruptRecords",
    "Header",
    "Marker",
    "Record",
    "Span",
    "UnknownCompression",
    "build_batch",
    "build_marker",
    "decode_header",
    "decode_marker",
    "decode_records",
    "decode_span",
    "fingerprint",
    "fingerprint_sum",
    "iter_headers",
    "iter_spans",
    "set_append_time",
    "unpack_header",
]
