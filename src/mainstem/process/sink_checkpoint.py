"""What the sink needs of a Spark query's checkpoint directory: whose it is, and that the plan of a batch is durable.

Spark writes `metadata` (the query's id), `offsets/N` (the end of batch N) and `commits/N` by renaming a new file, but
syncs neither the file nor the directory, so a power cut may take them back. The sink syncs `offsets/N` before it
commits batch N to the log; that `commits/N` may be lost does no harm, since the marker then says that N is committed.
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from mainstem.core import UserError
from mainstem.core.files import sync_directory
from mainstem.process.sink_decision import SinkRefused


class Checkpoint:
    """A checkpoint directory on a local file system (`/a/b` or `file:///a/b`)."""

    def __init__(self, location: str | Path) -> None:
        parts = urlsplit(str(location))
        if parts.scheme not in ("", "file"):
            raise UserError(
                f"checkpoint {location}: expected a directory of a local file system, found {parts.scheme}:",
                hint="put checkpoints on a disk that the driver mounts; object stores are not supported yet",
            )
        self.directory = Path(unquote(parts.path))

    def query_id(self) -> str:
        """The id that Spark gave to the query of this checkpoint, when it first started.

        Raises:
            SinkRefused: it is missing or cannot be read.
        """
        path = self.directory / "metadata"
        hint = "bring back an unchanged copy of the checkpoint"
        try:
            return str(msgspec.json.decode(path.read_bytes(), type=dict[str, str])["id"])
        except (OSError, KeyError, msgspec.DecodeError) as error:
            raise SinkRefused(f"{path}: expected the id of a Spark query: {error!r}", hint=hint) from error

    def sync(self, batch: int) -> None:
        """Make the plan of `batch` durable: its file and Spark's checksum of it, and the names on the way to them.

        Raises:
            SinkRefused: there is no plan of this batch.
        """
        offsets = self.directory / "offsets"
        if not (offsets / str(batch)).exists():
            raise SinkRefused(
                f"{offsets / str(batch)}: the plan of the batch is missing",
                hint="is another directory configured as checkpointLocation than the sink was given?",
            )
        for path in (
            offsets / str(batch),
            offsets / f".{batch}.crc",
            self.directory / "metadata",
            self.directory / ".metadata.crc",
        ):
            _sync_file(path)
        sync_directory(offsets)
        sync_directory(self.directory)
        sync_directory(self.directory.parent)


def _sync_file(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # checksums are written on some file systems only
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
