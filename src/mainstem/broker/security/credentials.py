"""Users and what proves who they are: salted, iterated keys (RFC 5802), never a password.

Users come from two places. Those of the settings (`users_file`, `[broker.users]`) are there from the start; their keys
are made then, and are in memory alone. Those that AlterUserScramCredentials makes (`kafka-configs --entity-type users
--alter --add-config 'SCRAM-SHA-256=[password=...]'`) are facts of the log. Where both have a user, the fact is taken.
Both are for SCRAM and for PLAIN: a password that PLAIN brings is iterated and compared.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from mainstem.broker.facts import Facts
from mainstem.core.config import BadSetting
from mainstem.core.files import check_regular
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.wire.errors import Code, RequestError

log = get_logger()

LEAST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 16_384
_SALT_BYTES: Final = 16


class Mechanism(Enum):
    """A kind of SCRAM: Kafka's number and name of it, and its hash."""

    SHA_256 = (1, "SCRAM-SHA-256", "sha256")
    SHA_512 = (2, "SCRAM-SHA-512", "sha512")

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def label(self) -> str:
        return self.value[1]

    @property
    def hash(self) -> str:
        return self.value[2]

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash)

    def iterated(self, password: bytes, salt: bytes, iterations: int) -> bytes:
        """The salted password: some milliseconds of work, without Python's lock."""
        return hashlib.pbkdf2_hmac(self.hash, password, salt, iterations)


MECHANISMS: Final = {each.label: each for each in Mechanism}
_BY_NUMBER: Final = {each.number: each for each in Mechanism}


class Credential(msgspec.Struct, frozen=True):
    """What the log keeps of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations})"


def credential_of(mechanism: Mechanism, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """The credential behind a password that was salted and iterated."""
    client_key = mechanism.hmac(salted_password, b"Client Key")
    stored_key = hashlib.new(mechanism.hash, client_key).digest()
    return Credential(salt, stored_key, mechanism.hmac(salted_password, b"Server Key"), iterations)


def _made(mechanism: Mechanism, password: str) -> Credential:
    salt = secrets.token_bytes(_SALT_BYTES)
    return credential_of(
        mechanism, mechanism.iterated(password.encode(), salt, LEAST_ITERATIONS), salt, LEAST_ITERATIONS
    )


class Credentials:
    """All users' credentials. Changes are durable on return."""

    def __init__(self, facts: Facts, passwords: Mapping[str, str]) -> None:
        self._facts = facts
        self._kept: dict[tuple[str, Mechanism], Credential] = {}
        self._given = {
            (user, mechanism): _made(mechanism, password)
            for user, password in passwords.items()
            for mechanism in Mechanism
        }
        self._nobody = secrets.token_bytes(32)
        for key, fact in facts.below("scram:"):
            label, _, user = key.partition(":")
            if label in MECHANISMS:
                self._kept[user, MECHANISMS[label]] = msgspec.convert(fact, prepared(Credential))

    def __bool__(self) -> bool:
        """Whether there is a user."""
        return bool(self._kept or self._given)

    def find_or_pretend(self, user: str, mechanism: Mechanism) -> tuple[Credential, bool]:
        """The user's credential, or one that no password has; whether there is such a user.

        What a client is told of a user that is not there looks as that of any other, each time the same.
        """
        found = self._kept.get((user, mechanism)) or self._given.get((user, mechanism))
        if found is not None:
            return found, True
        salt = mechanism.hmac(self._nobody, user.encode())[:_SALT_BYTES]
        nobodys_key = secrets.token_bytes(hashlib.new(mechanism.hash).digest_size)
        return Credential(salt, nobodys_key, self._nobody, LEAST_ITERATIONS), False

    def check_password(self, user: str, password: str) -> bool:
        """Whether this is the user's password; it takes as long for a user that is not there. Milliseconds of work."""
        mechanism = next((each for each in Mechanism if (user, each) in self._kept), Mechanism.SHA_256)
        credential, there = self.find_or_pretend(user, mechanism)
        salted = mechanism.iterated(password.encode(), credential.salt, credential.iterations)
        given = credential_of(mechanism, salted, credential.salt, credential.iterations)
        return hmac.compare_digest(given.stored_key, credential.stored_key) and there

    # --- what the admin APIs do --------------------------------------------------------------------------------------

    def described(self) -> dict[str, list[tuple[int, int]]]:
        """(mechanism's number, iterations) by user, of those that the log keeps."""
        users: dict[str, list[tuple[int, int]]] = {}
        for (user, mechanism), credential in self._kept.items():
            users.setdefault(user, []).append((mechanism.number, credential.iterations))
        return {user: sorted(users[user]) for user in sorted(users)}

    def check_deletion(self, user: str, number: int) -> None:
        """Raise RequestError unless the log keeps that credential."""
        mechanism = _checked(user, number)
        if (user, mechanism) not in self._kept:
            raise RequestError(Code.resource_not_found, "Attempt to delete a user credential that does not exist")

    @staticmethod
    def check_upsertion(user: str, number: int, iterations: int, salted: bytes) -> None:
        """Raise RequestError unless such a credential may be kept."""
        _checked(user, number)
        if iterations < LEAST_ITERATIONS:
            raise RequestError(Code.unacceptable_credential, "Too few iterations")
        if iterations > MOST_ITERATIONS:
            raise RequestError(Code.unacceptable_credential, "Too many iterations")
        if not salted:
            raise RequestError(Code.unacceptable_credential, "an empty salted password")

    async def change(
        self, deletions: Iterator[tuple[str, int]], upsertions: Iterator[tuple[str, int, int, bytes, bytes]]
    ) -> None:
        """Delete (user, mechanism) and set (user, mechanism, iterations, salt, salted password), all of it or nothing.

        Raises:
            StorageError: nothing was changed.
        """
        after: dict[tuple[str, Mechanism], Credential | None] = {
            (user, _BY_NUMBER[number]): None for user, number in deletions
        }
        for user, number, iterations, salt, salted in upsertions:
            mechanism = _BY_NUMBER[number]
            after[user, mechanism] = credential_of(mechanism, salted, salt, iterations)
        await self._facts.put({f"scram:{mechanism.label}:{user}": each for (user, mechanism), each in after.items()})
        for key, credential in after.items():
            if credential is None:
                self._kept.pop(key, None)
            else:
                self._kept[key] = credential


def _checked(user: str, number: int) -> Mechanism:
    if not user:
        raise RequestError(Code.unacceptable_credential, "Username must not be empty")
    if number not in _BY_NUMBER:
        raise RequestError(Code.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    return _BY_NUMBER[number]


def read_users(file: str) -> dict[str, str]:
    """The users of a file: a line `name:password` each; empty lines and those that begin with # are not looked at.

    Raises:
        BadSetting: it cannot be read, or a line is none; the message names the line, not what it says.
    """
    hint = "it has a line NAME:PASSWORD for each user"
    try:
        if check_regular(file).st_mode & 0o077:
            log.warning("users_file_not_private", path=file, hint=f"others may read the passwords: chmod 600 {file}")
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise BadSetting(f"users_file {file}: expected a file to read: {reason}", hint=hint) from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not (user and colon and password):
            raise BadSetting(f"users_file {file}, line {number}: expected NAME:PASSWORD", hint=hint)
        if user in users:
            raise BadSetting(
                f"users_file {file}, line {number}: expected each user once, found {user} again", hint=hint
            )
        users[user] = password
    return users
