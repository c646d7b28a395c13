"""Small text files in Kafka's form: which topic a partition belongs to, and which cluster a directory.

::

    <topic>-<partition>/partition.metadata      meta.properties
    version: 0                                  version=1
    topic_id: X0p3yB4nQ5ejd8yO0s2cYg            cluster.id=5L6g3nShT-eMCtK--X86sw
                                                node.id=1
                                                directory.id=8x1GXFDYTYSwIzVfhGc8Yw
                                                mainstem.format=1
                                                mainstem.crc32c=1c5f9ac0        of all that is before
"""

import base64
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
from crc32c import crc32c

from mainstem.core import UserError
from mainstem.log.disk import Disk
from mainstem.log.errors import CorruptFile

PARTITION_METADATA = "partition.metadata"
DELETED = "-delete"
META_PROPERTIES = "meta.properties"
FORMAT = 1
_CRC = b"mainstem.crc32c="
_RESTORE = "restore the file from a copy"
_NAMES = {"version", "cluster.id", "node.id", "directory.id", "mainstem.format"}


class UnsupportedFormat(UserError):
    """A data directory that a later version of the program wrote."""


class DirectoryMetadata(msgspec.Struct, frozen=True):
    """What `meta.properties` says."""

    cluster_id: str
    directory_id: str


def encode_topic_id(topic_id: UUID) -> str:
    """Kafka's text form of a UUID: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def decode_topic_id(data: bytes) -> UUID:
    """The topic id in a `partition.metadata` file.

    Raises:
        CorruptFile: there is none.
    """
    value = _pairs(data, ":").get("topic_id", "")
    try:
        return UUID(bytes=base64.urlsafe_b64decode(value + "=="))
    except ValueError:
        raise CorruptFile(f"{PARTITION_METADATA}: no topic id in {data[:80]!r}") from None


def create_files(disk: Disk, directory: Path, topic_id: UUID) -> None:
    """A partition's directory with its topic id (not synced)."""
    found = read_topic_id(disk, directory)
    if found == topic_id:  # not written over: a power cut would leave it empty
        return
    if disk.exists(directory):  # a deleted topic's of the same name
        disk.remove_tree(directory)
    disk.make_directory(directory)
    try:
        disk.write_file(directory / PARTITION_METADATA, _partition_metadata(topic_id))
    except OSError:
        with suppress(OSError):  # nobody would know whose it is
            disk.remove_tree(directory)
        raise


def restore_topic_id(disk: Disk, directory: Path, topic_id: UUID) -> None:
    """The topic id in a partition's directory, where it is missing or damaged; durable on return (blocking)."""
    if read_topic_id(disk, directory) != topic_id:
        disk.write_atomically(directory / PARTITION_METADATA, _partition_metadata(topic_id))


def _partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_topic_id(topic_id)}\n".encode()


def doomed_name(directory: Path) -> Path:
    """What a partition's directory is called while its files are deleted, one after the other: nobody takes it for the
    partition. A name of its own, below the 255 bytes that a file system allows.
    """
    return directory.with_name(f"{directory.name[:200]}.{uuid4().hex}{DELETED}")


def sync_files(disk: Disk, directory: Path) -> None:
    """Make what `create_files` made durable, except for the directory's own name."""
    disk.open(directory / PARTITION_METADATA).sync()
    disk.sync_directory(directory)


def list_files(disk: Disk, directory: Path) -> list[Path]:
    """What is in a partition's directory; nothing where there is none."""
    return disk.list(directory) if disk.exists(directory) else []


def read_topic_id(disk: Disk, directory: Path) -> UUID | None:
    """The topic id in a partition's directory; None where there is none."""
    try:
        return decode_topic_id(disk.read_file(directory / PARTITION_METADATA))
    except (FileNotFoundError, NotADirectoryError, CorruptFile):
        return None


def lacks_topic_id(disk: Disk, directory: Path) -> bool:
    """A power cut has left a partition's directory without its topic id, or with an empty file of it."""
    try:
        return not disk.read_file(directory / PARTITION_METADATA).strip(b"\0")
    except (FileNotFoundError, NotADirectoryError):
        return True


def open_directory_metadata(disk: Disk, directory: Path) -> DirectoryMetadata:
    """Read `meta.properties`; a new directory gets one (blocking).

    Raises:
        UnsupportedFormat: a later version of the program wrote the directory.
        CorruptFile: the file is not what this program writes.
    """
    path = directory / META_PROPERTIES
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        made = DirectoryMetadata(encode_topic_id(uuid4()), encode_topic_id(uuid4()))
        lines = ["version=1", f"cluster.id={made.cluster_id}", "node.id=1", f"directory.id={made.directory_id}"]
        disk.write_atomically(path, _with_crc("\n".join([*lines, f"mainstem.format={FORMAT}", ""]).encode()))
        return made
    head, is_there, _ = data.rpartition(_CRC)
    pairs = _pairs(head or data, "=")
    if not pairs.get("mainstem.format", "").isdigit() or "cluster.id" not in pairs:
        if "cluster.id" in pairs and "node.id" in pairs:
            raise UnsupportedFormat(
                f"{path}: expected mainstem.format, found a data directory of Apache Kafka",
                hint="give the log a directory of its own",
            )
        raise CorruptFile(f"{path}: expected cluster.id and mainstem.format", hint=_RESTORE)
    # A file of before has no CRC; it has no other lines than these, either.
    if data != _with_crc(head) if is_there else (pairs.keys() != _NAMES or data.count(b"\n") != len(_NAMES)):
        raise CorruptFile(f"{path}: it is not as it was written, by its CRC", hint=_RESTORE)
    if int(pairs["mainstem.format"]) > FORMAT:
        raise UnsupportedFormat(
            f"{path}: format {pairs['mainstem.format']}, this program reads up to {FORMAT}",
            hint="use the newer program, or another data directory",
        )
    return DirectoryMetadata(pairs["cluster.id"], pairs.get("directory.id", ""))


def _with_crc(head: bytes) -> bytes:
    return head + _CRC + b"%08x\n" % crc32c(head)


def _pairs(data: bytes, separator: str) -> dict[str, str]:
    lines = (line.partition(separator) for line in data.decode(errors="replace").splitlines())
    return {name.strip(): value.strip() for name, found, value in lines if found}
