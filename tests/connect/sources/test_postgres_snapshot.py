"""COPY's lines become the rows that pgoutput would send. The rest of a snapshot is in test_postgres.py."""

from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sources.postgres_snapshot import parse_copy_line

_ESCAPES = {b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\v": b"\\v"}


def copy_line(row) -> bytes:
    fields = [rb"\N" if v is None else b"".join(_ESCAPES.get(bytes([b]), bytes([b])) for b in v) for v in row]
    return b"\t".join(fields) + b"\n"


@given(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=6))
def test_a_line_is_read_as_it_was_written(row):
    assert parse_copy_line(copy_line(row)) == row


def test_octal_and_hexadecimal_escapes():
    assert parse_copy_line(b"\\101\\x42c\t\\N\t\\q\n") == [b"ABc", None, b"q"]
