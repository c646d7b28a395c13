"""What the sink needs of a Spark query's checkpoint directory: whose it is, and that the plan of a batch is durable.

Spark writes `metadata` (the query's id), `offsets/N` (the end of batch N) and `commits/N` by renaming a new file, but
syncs neither the file nor the directory, so a power cut may take them back. The sink syncs `offsets/N` before it
commits batch N to the log; that `commits/N` may be lost does no harm, since the marker then says that N is committed.
"""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from mainstem.core import CorruptData, UserError
from mainstem.core.files import sync_directory
from mainstem.process.offsets import read_plan
from mainstem.process.sink_decision import SinkRefused

_DAMAGE = (
    "Checksum error",
    "Incomplete log file",
    "malformed",
    "EOFException",
    "FileNotFoundException",
    "ZipException",
)
"""How Spark 4.2 and what it reads files with say that one is not as it was written."""


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

    def check(self, committed: int) -> None:
        """See that what Spark will read can be read: where a file was cut, Spark fails at every start and names no repair.

        Args:
            committed: the last batch that the log has; -1 where it has none.

        Raises:
            SinkRefused: a file is damaged; the hint names the repair.
        """
        if (self.directory / "metadata").exists():
            self.query_id()
        for path in self._newest("offsets", 2):
            try:
                read_plan(self.directory, int(path.name))
            except CorruptData as error:
                raise SinkRefused(str(error), hint=self.repair(path, committed)) from error
        for path in self._newest("commits", 1):
            try:
                version, *rest = path.read_text().splitlines()
                whole = version == "v1" and isinstance(msgspec.json.decode("".join(rest)), dict)
            except (ValueError, msgspec.DecodeError):
                whole = False
            if not whole:
                raise SinkRefused(
                    f"{path}: expected the end of a batch, found something else", hint=self.repair(path, committed)
                )

    def damaged(self, failure: str) -> Path | None:
        """The file of this checkpoint that a failure of Spark complains about; `failure` has all of its causes.

        Of a file of the state, Spark says that it could not load the state, and not which file it was.
        """
        named = re.search(re.escape(str(self.directory)) + r"/[\w./-]*[\w-]", failure)
        path = Path(named.group()) if named else self.directory / "state" if "LOAD_STATE_STORE" in failure else None
        return path if any(sign in failure for sign in _DAMAGE) else None

    def repair(self, path: Path, committed: int) -> str:
        """What to do about a damaged file. Only what the log makes good again may be removed."""
        batch = int(path.name) if path.name.isdigit() else -1
        both = f"remove {path} and .{path.name}.crc beside it"
        if path.parent.name == "offsets" and batch > committed:
            return f"{both}: batch {batch} is not in the log yet, and is planned anew"
        if path.parent.name == "commits" and 0 <= batch <= committed:
            return f"{both}: batch {batch} is run again, and left out since the log has it"
        return "bring back an unchanged copy of the checkpoint, or start a new version of the job"

    def _newest(self, log: str, count: int) -> list[Path]:
        """The newest files of one of Spark's logs, the newest first."""
        directory = self.directory / log
        numbers = (
            sorted((int(f.name) for f in directory.iterdir() if f.name.isdigit()), reverse=True)
            if directory.is_dir()
            else []
        )
        return [directory / str(number) for number in numbers[:count]]

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
