"""What a Delta table says of itself: the user metadata of our newest commit, read from the table's own log.

Read in Python: Spark's DESCRIBE HISTORY takes about 0.6 s a table, and longer the longer the history is.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mainstem.core import CorruptData, Retriable, TopicPartition

REPAIR = "remove or move the directory: the table is filled anew from the log"


class TableGone(Retriable):
    """A table's directory was removed while the query ran."""

    def __init__(self, table: Path) -> None:
        super().__init__(f"{table}: the table is gone: it is filled anew from the log")


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


class _CommitInfo(msgspec.Struct):
    userMetadata: str | None = None  # noqa: N815  Delta's name


class _Action(msgspec.Struct):
    commitInfo: _CommitInfo | None = None  # noqa: N815  Delta's name


def is_table(directory: Path) -> bool:
    """Whether `directory` holds a table: its first commit is there. A crash may leave a log without any."""
    return any(_names(directory))  # up to the first: there are many


def _versions(table: Path) -> list[str]:
    """Names of the commits that are there, the oldest first."""
    return sorted(_names(table))


def _names(table: Path) -> Iterator[str]:
    """Names of the commits that are there, in no order."""
    try:
        with os.scandir(table / "_delta_log") as files:
            for file in files:
                if file.name.endswith(".json") and file.name.removesuffix(".json").isdigit():
                    yield file.name
    except (FileNotFoundError, NotADirectoryError):
        return


def last_commit(table: Path) -> TableCommit | None:
    """Our newest commit in the log of `table`; None where the table has none yet.

    Others may have committed since (OPTIMIZE, VACUUM), so the files are read from the newest one backwards. Delta keeps
    them for 30 days at least, and always those since its last checkpoint.

    Raises:
        CorruptData: a commit is damaged, or Delta has cleaned up our last one. Its history would not have it either: it
            reads the same files.
    """
    versions = _versions(table)
    for name in reversed(versions):
        if (commit := _commit_in(table, name)) is not None:
            return commit
    if versions and int(versions[0].removesuffix(".json")) > 0:
        raise CorruptData(
            f"{table}: expected a commit that says up to where the table has its topic, found none since {versions[0]}",
            hint=REPAIR,
        )
    return None


def check_whole(table: Path) -> None:
    """Check that the log of `table` goes back to the table's beginning, and that this was the topic's.

    Delta removes the first commits in time, those that a checkpoint has.

    Raises:
        CorruptData: it does not: the directory was removed, or parts of it, while it was written to.
    """
    log, first = table / "_delta_log", f"{0:020}.json"
    if not (log / first).exists():
        if any("checkpoint" in file.name for file in log.iterdir()):
            return
        found = "neither it nor a checkpoint"
    elif (commit := _commit_in(table, first)) is not None and commit.number > 1:
        found = f"commit {commit.number}"
    else:
        return
    raise CorruptData(
        f"{table}: expected the first commit of its topic in {first}, found {found}: what came before is missing",
        hint=REPAIR,
    )


def has_commit(table: Path, metadata: str) -> bool:
    """Whether our newest commit is the one with this metadata: a writer that fails may have committed before.

    Raises:
        CorruptData: nobody can tell.
    """
    return last_commit(table) == msgspec.json.decode(metadata, type=TableCommit)


def _commit_in(table: Path, name: str) -> TableCommit | None:
    """What a commit says, if it is ours."""
    path = table / "_delta_log" / name
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


def _metadata(line: bytes) -> TableCommit | None:
    info = msgspec.json.decode(line, type=_Action).commitInfo
    text = info.userMetadata if info is not None else None
    if text is None or '"mainstem"' not in text:
        return None
    return msgspec.json.decode(text, type=TableCommit, strict=False)
