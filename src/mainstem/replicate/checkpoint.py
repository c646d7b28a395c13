"""A replica's state and the offset up to which it goes, in one file: a node that starts again reads what came since.

    <hash of the rest, 32 hex digits> newline <JSON: version, log, topic_id, replica>

The file is replaced as a whole. One that is damaged counts as none: all of it can be made from the log again.
"""

from hashlib import blake2b
from pathlib import Path

import msgspec

from mainstem.core.files import make_directory, write_atomically
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.replicate.errors import OtherLog
from mainstem.replicate.replica import ReplicaDump

log = get_logger()

NAME = "replica.json"
_VERSION = 1


class Identity(msgspec.Struct, frozen=True):
    """Which log it is, and which topic: one that was made anew has another id."""

    log: str
    topic_id: str


class Checkpoint(msgspec.Struct, frozen=True):
    """What the file holds."""

    identity: Identity
    replica: ReplicaDump
    version: int = _VERSION


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's content. A dump may hold the state itself, which changes with the next record: encode it at once."""
    body = msgspec.json.encode(checkpoint)
    return _hash(body) + b"\n" + body


def write(directory: Path, data: bytes) -> None:
    """Replace the checkpoint; on return it survives a crash of the machine."""
    make_directory(directory)
    write_atomically(directory / NAME, data)


def read(directory: Path, identity: Identity, kind: str) -> ReplicaDump | None:
    """The last checkpoint; None where there is none that can be used.

    Raises:
        OtherLog: it is of another log or topic, or of a service that is replicated in another way.
    """
    path = directory / NAME
    if not path.exists():
        return None
    hashed, _, body = path.read_bytes().partition(b"\n")
    try:
        checkpoint = msgspec.json.decode(body, type=prepared(Checkpoint)) if hashed == _hash(body) else None
    except msgspec.DecodeError:
        checkpoint = None
    if checkpoint is None or checkpoint.version != _VERSION:
        log.warning("checkpoint_not_used", path=str(path), reason="damaged, or of another version")
        return None
    found = (checkpoint.identity, checkpoint.replica.kind)
    if found != (identity, kind):
        raise OtherLog(
            f"{path}: expected {_told(identity, kind)}, found {_told(*found)}",
            hint="give this node the directory, the log and the topic that belong together, or an empty directory",
        )
    return checkpoint.replica


def remove(directory: Path) -> None:
    """What the file holds must not be gone on from."""
    (directory / NAME).unlink(missing_ok=True)


def _told(identity: Identity, kind: str) -> str:
    return f"log {identity.log}, topic id {identity.topic_id}, {kind}"


def _hash(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode()
