"""What a Delta table says of itself: the user metadata of our newest commit, read from the table's own log.

Read in Python: Spark's DESCRIBE HISTORY takes about 0.6 s a table, and longer the longer the history is.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mainstem.core import CorruptData, Retriable, TopicPartition
from mainstem.core.prepared import prepared

REPAIR = "remove or move the directory: the table is filled anew from the log"


class TableGone(Retriable):
    """A table's directory was removed while the query ran."""

    def __init__(self, table: Path) -> None:
        super().__init__(f"{table}: the table is gone: it is filled anew from the log")


class TableChanged(Retriable):
    """A table is not where our last commit left it: the query starts again from where it is now."""


class PartitionBooks(msgspec.Struct):
    """What a table holds of one partition: everything below offset `next`."""

    next: int = 0
    rows: int = 0
    tombstones: int = 0
    quarantined: int = 0
    hash: int = 0


class TableCommit(msgspec.Struct):
    """The user metadata of a commit: `topic` with id `topic_id` of the log `cluster`; `number` counts the commits."""

    topic: str
    partitions: dict[int, PartitionBooks] = {}
    cluster: str = ""
    topic_id: str = ""
    number: int = 0
    mainstem: int = 1

    @property
    def positions(self) -> dict[TopicPartition, int]:
        return {TopicPartition(self.topic, number): books.next for number, books in self.partitions.items()}

    @property
    def is_first(self) -> bool:
        """Whether it may make the table: every later one claims what the table has had before."""
        return self.number == 1

    @property
    def metadata(self) -> str:
        return msgspec.json.encode(self).decode()


class Found(msgspec.Struct, frozen=True):
    """A commit of ours, and the version of the table that it made."""

    version: int
    commit: TableCommit


class _CommitInfo(msgspec.Struct):
    userMetadata: str | None = None  # noqa: N815  Delta's name
    operation: str | None = None
    operationParameters: msgspec.Raw = msgspec.Raw(b"{}")  # noqa: N815  Delta's name; each operation has others


class _Restore(msgspec.Struct):
    """What a RESTORE was told; the version is not said where that was a time."""

    version: int | None = None


class _Action(msgspec.Struct):
    commitInfo: _CommitInfo | None = None  # noqa: N815  Delta's name


def is_table(directory: Path) -> bool:
    """Whether `directory` holds a table: its first commit is there. A crash may leave a log without any."""
    return any(_names(directory))  # up to the first: there are many


def _names(table: Path) -> Iterator[str]:
    """Names of the commits that are there, in no order."""
    try:
        with os.scandir(table / "_delta_log") as files:
            for file in files:
                if file.name.endswith(".json") and file.name.removesuffix(".json").isdigit():
                    yield file.name
    except (FileNotFoundError, NotADirectoryError):
        return


def last_commit(table: Path) -> Found | None:
    """Our newest commit in the log of `table`; None where the table has none yet.

    Others may have committed since (OPTIMIZE, VACUUM), so the files are read from the newest one backwards. Delta keeps
    them for 30 days at least, and always those since its last checkpoint. What a RESTORE has undone is not looked at.

    Raises:
        CorruptData: a commit is damaged, one before our last is missing, the table was restored to a time, or Delta has
            cleaned up our last one. Its history would not have it either: it reads the same files.
    """
    newest = max(_names(table), default=None)
    if newest is None:
        return None
    commits = _commits(table, int(newest.removesuffix(".json")))
    found = next(commits, None)
    if found is not None:
        _check_goes_on(table, found.commit, commits)
    return found


def _check_goes_on(table: Path, commit: TableCommit, earlier: Iterator[Found]) -> None:
    """Check that a commit goes on from the one before it, where that is still there.

    Raises:
        CorruptData: it does not. The table was replaced at the moment when it was written to, or two sinks write it.
    """
    try:
        before = next(earlier, None)
    except _CleanedUp:
        return
    # A release before this one did not count its commits.
    if before is not None and before.commit.number and before.commit.number + 1 != commit.number:
        raise CorruptData(
            f"{table}: expected commit {commit.number - 1} of its topic before commit {commit.number}, found commit "
            f"{before.commit.number}: nobody can tell what the table has",
            hint=REPAIR,
        )


def newest_since(table: Path, version: int) -> Found | None:
    """Our newest commit in `version` of the table, which one of ours made, and in those after it; None where that is
    not there any more.

    Nothing is listed: a table has more than a million versions in time.
    """
    found = None
    while True:
        try:
            commit = _commit_in(table, version)
        except FileNotFoundError:
            return found
        if isinstance(commit, _Restore):  # it may be older than `version` now
            return last_commit(table)
        if commit is not None:
            found = Found(version, commit)
        version += 1


def check_whole(table: Path) -> None:
    """Check that the log of `table` goes back to the table's beginning, and that this was the topic's.

    Delta removes the first commits in time, those that a checkpoint has.

    Raises:
        CorruptData: it does not: the directory was removed, or parts of it, while it was written to.
    """
    log, first = table / "_delta_log", _name(0)
    if not (log / first).exists():
        if any("checkpoint" in file.name for file in log.iterdir()):
            return
        found = "neither it nor a checkpoint"
    elif isinstance(commit := _commit_in(table, 0), TableCommit) and commit.number > 1:
        found = f"commit {commit.number}"
    else:
        return
    raise CorruptData(
        f"{table}: expected the first commit of its topic in {first}, found {found}: what came before is missing",
        hint=REPAIR,
    )


def has_commit(table: Path, commit: TableCommit) -> bool:
    """Whether our newest commit is this one: a writer that fails may have committed before.

    Raises:
        CorruptData: nobody can tell.
    """
    found = last_commit(table)
    return found is not None and found.commit == commit


class _CleanedUp(CorruptData):
    """A commit is not there any more."""


def _commits(table: Path, version: int) -> Iterator[Found]:
    """Our commits that `version` of the table is made of, the newest first."""
    while version >= 0:
        try:
            commit = _commit_in(table, version)
        except FileNotFoundError as error:
            raise _CleanedUp(
                f"{table}: expected a commit that says up to where the table has its topic, found none since "
                f"{_name(version + 1)}",
                hint=REPAIR,
            ) from error
        if isinstance(commit, TableCommit):
            yield Found(version, commit)
        version = version - 1 if not isinstance(commit, _Restore) else _restored(table, version, commit)


def _restored(table: Path, version: int, restore: _Restore) -> int:
    """The version that version `version` is a copy of."""
    if restore.version is None or not 0 <= restore.version < version:
        raise CorruptData(
            f"{table}: expected that {_name(version)} says which version the table was restored to, found a time: nobody "
            "can tell what the table has",
            hint=f"restore it to a version (TO VERSION AS OF), or {REPAIR}",
        )
    return restore.version


def _name(version: int) -> str:
    return f"{version:020}.json"


def _commit_in(table: Path, version: int) -> TableCommit | _Restore | None:
    """What a commit says, if it is ours or a RESTORE.

    Raises:
        FileNotFoundError: the table has no such version, or Delta has cleaned it up.
        CorruptData: it is damaged.
    """
    path = table / "_delta_log" / _name(version)
    with path.open("rb") as lines:
        for line in lines:
            try:
                metadata = _metadata(line) if line.startswith(b'{"commitInfo"') else None
            except (msgspec.DecodeError, UnicodeDecodeError) as error:  # the second for bytes that are no UTF-8
                raise CorruptData(
                    f"{path}: expected a commit of a Delta table, found damaged bytes: {error}",
                    hint=f"restore the file, or remove or move {table}: the table is filled anew from the log",
                ) from error
            if metadata is not None:
                return metadata
    return None


def _metadata(line: bytes) -> TableCommit | _Restore | None:
    info = msgspec.json.decode(line, type=prepared(_Action)).commitInfo
    if info is not None and info.operation == "RESTORE":
        return msgspec.json.decode(info.operationParameters, type=prepared(_Restore), strict=False)
    text = info.userMetadata if info is not None else None
    # Where a person has a table compacted after each merge (autoCompact), the merge's metadata are there once more.
    if info is None or info.operation == "OPTIMIZE" or text is None or '"mainstem"' not in text:
        return None
    return msgspec.json.decode(text, type=prepared(TableCommit), strict=False)
