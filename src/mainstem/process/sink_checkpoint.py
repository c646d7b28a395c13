"""What the sink needs of a Spark query's checkpoint directory: whose it is, and that what a batch rests on is durable.

Spark writes `metadata` (the query's id), `sources/<name>/K` (files that a source has found), `offsets/N` (the end of
batch N), the files of the state and `commits/N` by renaming a new file, but syncs neither the file nor the directory: a
power cut may take them back, or leave them empty. The sink syncs all of them but the last before it commits batch N to
the log. That `commits/N` may be lost does no harm, since the marker then says that N is committed; one that is not
whole is removed at the next start, and so are the plan and the sources' files of a batch that the log does not have.
"""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from mainstem.core import CorruptData, UserError
from mainstem.core.files import sync_directory
from mainstem.core.logging import get_logger
from mainstem.process.another_version import start_another
from mainstem.process.offsets import read_plan
from mainstem.process.sink_decision import SinkRefused

log = get_logger()

INJECTION_SOURCE = "mainstem_heartbeats"
"""The source of a job's own event times; `sources` has its log under this name. Those of a second stream and of further
ones have the stream's behind it.
"""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_ENTRY = re.compile(r"\.?(\d+)(?:\.compact)?(?:\.crc)?")  # of the log of a source of files, and its checksum
_UNSYNCED_ENDS = 100  # more of them than an operating system keeps to itself at a batch a second
_SYNCS_AT_ONCE = 8  # the file system makes several durable with one write of its journal
_DAMAGE = (
    "Checksum error",
    "Incomplete log file",
    "malformed",
    "EOFException",
    "FileNotFoundException",
    "ZipException",
)
"""How Spark 4.2 and what it reads files with say that one is not as it was written."""
_OF_STATE = ("LOAD_STATE_STORE", "org.apache.spark.sql.execution.streaming.state.")
"""What a failure has in it that came from reading the state, where no file is named."""
_NO_DAMAGE = (
    "Too many open files",
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Permission denied",
)
"""Java calls each of them a file that was not found, also where one was to be written."""


class Checkpoint:
    """A checkpoint directory on a local file system (`/a/b` or `file:///a/b`)."""

    def __init__(self, location: str | Path) -> None:
        scheme = _SCHEME.match(str(location))
        if scheme is not None and scheme[1] != "file":
            raise UserError(
                f"checkpoint {location}: expected a directory of a local file system, found {scheme[1]}:",
                hint="put checkpoints on a disk that the driver mounts; object stores are not supported yet",
            )
        # A path is taken as it is: in a URL, # and ? would end it, and %41 be an A.
        self.directory = Path(location) if scheme is None else Path(unquote(urlsplit(str(location)).path))
        self._synced: dict[Path, tuple[int, int, int]] = {}

    def started(self) -> str | None:
        """The id of its query; None where none has ever been started with it.

        Raises:
            SinkRefused: it cannot be read.
        """
        return self.query_id() if (self.directory / "metadata").exists() else None

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
        """See that what Spark will read can be read: where a file was cut, Spark fails at every start
        and names no repair.

        What a power cut may leave is mended: the log makes it good.

        Args:
            committed: the last batch that the log has; -1 where it has none.

        Raises:
            SinkRefused: a file is damaged; the hint names the repair.
        """
        if committed < 0:
            self._remove_cut_start()
        self.started()
        plans = self._newest("offsets", 2)
        if plans and int(plans[0].name) > 0 and [int(path.name) for path in plans[1:]] != [int(plans[0].name) - 1]:
            missing = self.directory / "offsets" / str(int(plans[0].name) - 1)
            raise SinkRefused(f"{missing}: the plan of a batch is missing", hint=self.repair(missing, committed))
        for path in plans:
            try:
                read_plan(self.directory, int(path.name))
            except CorruptData as error:
                self._mend(path, committed, str(error))
        for path in self._newest("commits", _UNSYNCED_ENDS):
            if _is_end(path):
                break
            self._mend(path, committed, f"{path}: expected the end of a batch, found something else")
        self._mend_injections(committed)

    def _remove_cut_start(self) -> None:
        """Remove what a power cut has left of the first start: no batch was committed, so that nothing is lost with it,
        and there is no copy that could be brought back.
        """
        if self._newest("commits", 1) or any(path.name != "0" for path in self._newest("offsets", 2)):
            return  # it has run: the log is not the one that it ran on
        try:
            self.started()
        except SinkRefused as error:
            reason = str(error)
        else:
            cut = next((each for each in self.directory.rglob("*") if each.is_file() and not each.stat().st_size), None)
            if cut is None:
                return
            reason = f"{cut}: it is empty"
        shutil.rmtree(self.directory)
        sync_directory(self.directory.parent)
        log.warning("checkpoint_mended", removed=str(self.directory), reason=reason, committed=-1)

    def _mend(self, path: Path, committed: int, reason: str) -> None:
        if not _is_made_good(path, committed):
            raise SinkRefused(reason, hint=self.repair(path, committed))
        for each in (path.with_name(f".{path.name}.crc"), path):
            each.unlink(missing_ok=True)
        sync_directory(path.parent)
        log.warning("checkpoint_mended", removed=str(path), reason=reason, committed=committed)

    def _mend_injections(self, committed: int) -> None:
        """Where the log of the injections is not whole behind the last batch that was committed, remove what is there,
        and the plan that speaks of it: Spark finds the injections again, and plans the batch anew.
        """
        directory, plan = self.directory / "sources" / INJECTION_SOURCE, self.directory / "offsets" / str(committed + 1)
        if not directory.is_dir() or any(int(path.name) > committed for path in self._newest("commits", 1)):
            return  # of a checkpoint that is ahead of the log nothing is removed
        if any(directory.parent.glob(f"{INJECTION_SOURCE}_*")):
            return  # each stream has such a log, and a plan does not say whose entry is whose
        try:
            read = read_plan(self.directory, committed).injections
            planned = read_plan(self.directory, committed + 1).injections if plan.exists() else read
        except CorruptData:
            return  # it was rolled back
        names = {path: _ENTRY.fullmatch(path.name) for path in directory.iterdir()}
        unread = {path: int(name[1]) for path, name in names.items() if name is not None and int(name[1]) > read}
        whole = {number for path, number in unread.items() if _is_entry(path)}
        lacks = [number for number in range(read + 1, max(planned, *unread.values(), read) + 1) if number not in whole]
        if not lacks:
            return
        removed = [path for path in (plan, plan.with_name(f".{plan.name}.crc"), *unread) if path.exists()]
        for path in removed:
            path.unlink()
        for each in {path.parent for path in removed}:
            sync_directory(each)
        reason = f"{directory / str(lacks[0])}: expected the files of injections, found something else"
        log.warning("checkpoint_mended", removed=", ".join(map(str, removed)), reason=reason, committed=committed)

    def damaged(self, failure: str) -> Path | None:
        """The file of this checkpoint that a failure of Spark complains about; `failure` has all of its causes.

        Of a file of the state, Spark says that it could not load the state, and not which file it was.
        """
        if any(reason in failure for reason in _NO_DAMAGE):
            return None
        named = re.search(re.escape(str(self.directory)) + r"/[\w./-]*[\w-]", failure)
        of_state = any(sign in failure for sign in _OF_STATE)
        path = Path(named.group()) if named else self.directory / "state" if of_state else None
        return path if any(sign in failure for sign in _DAMAGE) else None

    def repair(self, path: Path, committed: int) -> str:
        """What to do about a damaged file. Only what the log makes good again may be removed."""
        if _is_made_good(path, committed):
            return f"remove {path} and .{path.name}.crc beside it: the log makes good what they say"
        job = self.directory.parent.name.rpartition("@")[0]
        return f"bring back an unchanged copy of the checkpoint, or {start_another(job or 'JOB')}"

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
        """Make durable what `batch` rests on: its plan, the state that it leaves, whatever its sources keep.

        Its tasks have written their state by now. Files that Spark adds in the background (snapshots of the state) are
        left to the next batch.

        Raises:
            SinkRefused: there is no plan of this batch.
        """
        plan = self.directory / "offsets" / str(batch)
        if not plan.exists():
            raise SinkRefused(
                f"{plan}: the plan of the batch is missing",
                hint="is another directory configured as checkpointLocation than the sink was given?",
            )
        now = self.stamps()
        changed = [path for path, stamp in now.items() if self._synced.get(path) != stamp]
        directories = {self.directory, self.directory.parent}
        directories |= {path if path.is_dir() else path.parent for path in changed}
        with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="checkpoint") as threads:
            list(threads.map(_sync, [path for path in changed if path not in directories]))
            list(threads.map(_sync, directories))  # the names, once the files are there
        self._synced = now

    def stamps(self) -> dict[Path, tuple[int, int, int]]:
        """Inode, size and time of change of all there is, but the ends of batches and what is still being written."""
        found: dict[Path, tuple[int, int, int]] = {}
        for directory, below, files in os.walk(self.directory):
            if "commits" in below and Path(directory) == self.directory:
                below.remove("commits")
            for name in [*below, *(file for file in files if not file.endswith(".tmp"))]:
                path = Path(directory, name)
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # Spark removes what is too old
                found[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return found


def _is_made_good(path: Path, committed: int) -> bool:
    """Whether the log, which has batches up to `committed`, stands in for this file: the plan of a batch that it does
    not have is made anew, and a batch that it has but whose end is missing is run again and left out.
    """
    batch = int(path.name) if path.name.isdigit() else -1
    return (path.parent.name == "offsets" and batch > committed) or (
        path.parent.name == "commits" and 0 <= batch <= committed
    )


def _is_end(path: Path) -> bool:
    """Whether this is a whole file of `commits`."""
    try:
        version, *rest = path.read_text().splitlines()
        return version == "v1" and isinstance(msgspec.json.decode("".join(rest)), dict)
    except (ValueError, msgspec.DecodeError):
        return False


def _is_entry(path: Path) -> bool:
    """Whether this is a whole file of the log of a source of files."""
    try:
        version, *files = path.read_text().splitlines()
        return version == "v1" and all(isinstance(msgspec.json.decode(file), dict) for file in files) and bool(files)
    except (OSError, ValueError, msgspec.DecodeError):
        return False


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
