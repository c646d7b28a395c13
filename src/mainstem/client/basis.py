"""Basis tokens: how far somebody has seen the log. A read that carries one waits until its answer covers it.

    token    "ms1." base64url( MessagePack [log id, {topic: {partition: next offset}}] )

Every write through the collector and every read of a view gives one back, in the header `Mainstem-Basis` and as the
cookie `mainstem_basis`, merged with the one that came with the request: a client that sends back what it was last given
reads its own writes and never goes back in time, whichever node answers. Offsets of a partition are given out in its
order, so the next offset says all of what was seen of it; positions of different logs cannot be compared.
"""

import base64
import binascii
from collections.abc import Mapping

import msgspec

from mainstem.client.progress import NextOffsets
from mainstem.core import UserError

HEADER = "Mainstem-Basis"
COOKIE = "mainstem_basis"
PREFIX = "ms1."
MAX_TOKEN_BYTES = 48 << 10  # servers take 64 KiB of headers
MAX_COOKIE_BYTES = 3_800  # a browser drops a cookie of more than 4,096, its name and attributes included
DEFAULT_SECONDS = 10.0
MOST_SECONDS = 300.0
_SAFE = "a token is opaque: send back what Mainstem gave, unchanged"


class BadToken(UserError):
    """What was given is no token."""


class OtherLog(UserError):
    """A token of another log: its positions mean nothing here."""


class Basis(msgspec.Struct, frozen=True):
    """Positions of one log: everything below the next offset of each partition that is named has been seen."""

    log: str  # cluster id
    positions: NextOffsets = {}

    @property
    def token(self) -> str:
        """The basis as text; `parse` reads it. What was not moved at all is left out."""
        moved = {topic: {p: offset for p, offset in sorted(each.items()) if offset} for topic, each in self._sorted()}
        packed = msgspec.msgpack.encode((self.log, {topic: each for topic, each in moved.items() if each}))
        return PREFIX + base64.urlsafe_b64encode(packed).rstrip(b"=").decode()

    def with_positions(self, positions: NextOffsets) -> "Basis":
        """Both: of a partition that both name, the further position."""
        return Basis(self.log, furthest(self.positions, positions))

    def __add__(self, other: "Basis") -> "Basis":
        """Both.

        Raises:
            OtherLog: they are of different logs.
        """
        check_log(other, self.log)
        return self.with_positions(other.positions)

    def _sorted(self) -> list[tuple[str, dict[int, int]]]:
        return sorted(self.positions.items())


def parse(token: str) -> Basis:
    """The basis that a token stands for.

    Raises:
        BadToken: it is none.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise BadToken(f"basis: expected a token of at most {MAX_TOKEN_BYTES} bytes, found {len(token)}", hint=_SAFE)
    if not token.startswith(PREFIX):
        raise BadToken(f"basis: expected a token that starts with {PREFIX}, found {token[:40]!r}", hint=_SAFE)
    text = token.removeprefix(PREFIX)
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        log, positions = msgspec.msgpack.decode(packed, type=tuple[str, dict[str, dict[int, int]]])
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise BadToken(f"basis: expected a whole token, found {token[:40]!r}: {error}", hint=_SAFE) from None
    if any(offset < 0 or partition < 0 for each in positions.values() for partition, offset in each.items()):
        raise BadToken(f"basis: expected offsets from 0, found less in {token[:40]!r}", hint=_SAFE)
    return Basis(log, positions)


def check_log(basis: Basis, log: str) -> None:
    """Refuse a basis of another log than `log`.

    Raises:
        OtherLog: it is of another.
    """
    if basis.log != log:
        raise OtherLog(
            f"basis: expected positions in log {log}, found some in {basis.log}",
            hint="this token was given out on another log: forget it, and begin with what is written or read here",
        )


def furthest(left: NextOffsets, right: NextOffsets) -> NextOffsets:
    """Of each partition that one of them names, the further position."""
    result = {topic: dict(each) for topic, each in left.items()}
    for topic, partitions in right.items():
        into = result.setdefault(topic, {})
        for partition, offset in partitions.items():
            into[partition] = max(offset, into.get(partition, 0))
    return result


def reaches(position: Mapping[int, int], wanted: Mapping[int, int]) -> bool:
    """Whether `position` of a topic is at or beyond `wanted` in every partition."""
    return all(position.get(partition, 0) >= offset for partition, offset in wanted.items())


def given_basis(log: str, header: str | None, cookie: str | None) -> Basis:
    """What a request carries: its header, else its cookie; nothing where it has neither.

    A cookie may be older than the log that is here now, and whoever has it did not choose to send it: one that cannot
    be used is passed over.

    Raises:
        BadToken, OtherLog: of a header.
    """
    if header is not None:
        basis = parse(header.strip())
        check_log(basis, log)
        return basis
    try:
        basis = parse(cookie or "")
        check_log(basis, log)
    except UserError:
        return Basis(log)
    return basis


def answer_headers(basis: Basis) -> dict[str, str]:
    """The headers that give a basis back. One that is too large for a cookie is in the header alone."""
    token = basis.token
    headers = {HEADER: token}
    if len(token) <= MAX_COOKIE_BYTES:
        headers["Set-Cookie"] = f"{COOKIE}={token}; Path=/; SameSite=Lax"
    return headers


def wait_seconds(text: str | None) -> float:
    """How long a request is willing to wait.

    Raises:
        UserError: it is no number of seconds that anybody can wait.
    """
    try:
        seconds = DEFAULT_SECONDS if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_SECONDS:
        raise UserError(f"timeout: expected 0 to {MOST_SECONDS:g} seconds, found {str(text)[:40]!r}")
    return seconds
