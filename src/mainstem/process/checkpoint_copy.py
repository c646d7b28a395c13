"""A copy of a job's checkpoint in the log, so that the job goes on where its disk is lost: `checkpoint_in_log`.

    checkpoint, at the end of a batch            __mainstem.checkpoint.<job>.<version>, in the batch's transaction
    -------------------------------------        --------------------------------------------------------------------
    offsets/42, state/0/1/43.changelog new       ["offsets/42", 0] -> its bytes, …
    state/0/1/22.changelog gone                  ["state/0/1/22.changelog", 0] -> nothing

The topic is compacted, so that it has what the checkpoint has, byte for byte, for whatever keeps state; only the ends
of batches (`commits`) stay away, for which the marker stands. Files are cut into parts that fit into records. What was
sent is noted in `copied.json` beside the checkpoint: without the note all is sent once more.

A job without state needs no copy: its marker says where it was.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.internal import checkpoint_topic
from mainstem.client.topics import ensure_topic
from mainstem.client.transaction import TransactionWriter
from mainstem.core import TopicPartition
from mainstem.process.sink_checkpoint import Checkpoint

NOTE_FILE = "copied.json"
PART_BYTES = 512 * 1024  # of a file in one record
_SIZE_BYTES = 8
_GONE = (0, 0, 0)  # no file has this stamp
_SETTINGS = {"cleanup.policy": "compact", "min.compaction.lag.ms": "60000"}


class _Sent(msgspec.Struct, frozen=True):
    """Of one file: what told it from others (inode, size, time of change) when it was sent, and its parts."""

    stamp: tuple[int, int, int]
    parts: int


class CheckpointCopy:
    """Sends what has changed of a checkpoint with each transaction of its job.

    Args:
        checkpoint: the directory.
        topic: where to; see `ensure_copy_topic`.
    """

    def __init__(self, checkpoint: Path, topic: str) -> None:
        self._checkpoint = Checkpoint(checkpoint)
        self._partition = TopicPartition(topic, 0)
        self._note = checkpoint.parent / NOTE_FILE
        self._sent = _read_note(self._note)
        self._sending: dict[str, _Sent] = {}

    def send(self, writer: TransactionWriter, now_ms: int) -> None:
        """Append what is new, changed or gone since the last transaction that `committed` heard of."""
        directory = self._checkpoint.directory
        self._sending = {}
        for path, stamp in self._checkpoint.stamps().items():
            if path.is_dir():
                continue
            name = str(path.relative_to(directory))
            before = self._sent.get(name)
            if before is not None and before.stamp == stamp:
                self._sending[name] = before
                continue
            try:
                parts = self._send_file(writer, path, name, now_ms)
            except FileNotFoundError:
                continue  # Spark removes what is too old
            self._sending[name] = _Sent(stamp, parts)
        gone = [
            _key(name, part)
            for name, each in self._sent.items()
            for part in range(self._sending[name].parts if name in self._sending else 0, each.parts)
        ]
        writer.append(self._partition, gone, [None] * len(gone), None, now_ms)
        writer.flush()

    def committed(self) -> None:
        """The transaction of the last `send` is."""
        self._sent = self._sending
        _write_note(self._note, self._sent)

    def _send_file(self, writer: TransactionWriter, path: Path, name: str, now_ms: int) -> int:
        parts = 0
        with path.open("rb") as file:
            size = path.stat().st_size
            while (data := file.read(PART_BYTES)) or not parts:
                value = size.to_bytes(_SIZE_BYTES, "big") + data
                writer.append(self._partition, [_key(name, parts)], [value], None, now_ms)
                parts += 1
        return parts


def ensure_copy_topic(connection: Connection, job: str, version: str) -> str:
    """The topic for the copies of a version's checkpoint; it is there on return."""
    topic = checkpoint_topic(job, version)
    ensure_topic(connection, topic, 1, _SETTINGS)
    return topic


def split_key(key: bytes) -> tuple[str, int]:
    """The name of a file below the checkpoint, and which part of it the record has."""
    return msgspec.json.decode(key, type=tuple[str, int])


def write_part(path: Path, part: int, value: bytes) -> None:
    """Put a part of a file into its place; the file has its size from the first one on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+b") as file:
        file.seek(part * PART_BYTES)
        file.write(value[_SIZE_BYTES:])
        file.truncate(int.from_bytes(value[:_SIZE_BYTES], "big"))


def note(checkpoint: Path, home: Path, parts: Mapping[str, int]) -> None:
    """Note in `home` that the log has what a checkpoint has: so many parts of each of its files."""
    stamps = Checkpoint(checkpoint).stamps()
    sent = {name: _Sent(stamps.get(checkpoint / name, _GONE), number) for name, number in parts.items()}
    _write_note(home / NOTE_FILE, sent)


def _key(name: str, part: int) -> bytes:
    return msgspec.json.encode((name, part))


def _read_note(path: Path) -> dict[str, _Sent]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Sent])
    except (FileNotFoundError, msgspec.DecodeError):  # it is written anew
        return {}


def _write_note(path: Path, sent: Mapping[str, _Sent]) -> None:
    """Not synced: an older note only makes more be sent."""
    neighbour = path.with_suffix(".new")
    neighbour.write_bytes(msgspec.json.encode(sent))
    neighbour.rename(path)
