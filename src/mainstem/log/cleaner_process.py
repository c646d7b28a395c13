"""The process that compacts: it is told of segments and writes their cleaned files, one task after the other.

Tasks come on stdin and answers go to stdout, each as msgpack behind its length (4 bytes, big-endian). Both ends are of
one version of the program. It ends with its stdin, and is killed with its parent.
"""

import gc
import os
import signal
import sys
from pathlib import Path
from struct import Struct
from typing import IO, Literal

import msgspec

from mainstem.core import CorruptData
from mainstem.core.logging import configure
from mainstem.core.process import ParentGone, die_with_parent
from mainstem.log import compaction
from mainstem.log.checkpoint import SegmentState
from mainstem.log.compaction import Plan, Result
from mainstem.log.disk import SystemDisk
from mainstem.log.index import AbortedTransaction
from mainstem.log.segment import BadBatch, OpenFiles, Segment
from mainstem.records.keys import read_keys_compiled

_LENGTH = Struct(">I")
_OPEN_FILES = 16
_NICENESS = 5
"""Who waits for an answer comes first; beside others that are as busy it has a quarter of a processor."""


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A `Plan`, as it is told."""

    directory: str
    segments: list[SegmentState]
    dirty_offset: int
    end_offset: int
    aborted: list[AbortedTransaction]
    last_offsets_of_producers: frozenset[int]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    most_keys: int

    @classmethod
    def of(cls, plan: Plan) -> "Task":
        """On the event loop: the segments are its own."""
        return cls(
            str(plan.segments[0].directory),
            [segment.state() for segment in plan.segments],
            *(getattr(plan, field) for field in cls.__struct_fields__[2:]),
        )

    def plan(self, files: OpenFiles) -> Plan:
        """What it was made of, over files of this process."""
        directory = Path(self.directory)
        return Plan(
            [Segment(directory, state.base_offset, files, state) for state in self.segments],
            *(getattr(self, field) for field in self.__struct_fields__[2:]),
        )


class Written(msgspec.Struct, frozen=True, array_like=True):
    """A cleaned file, and its look-ups."""

    base_offsets: list[int]
    """Of the segments that it replaces."""
    state: SegmentState
    offset_entries: bytes
    time_entries: bytes


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A `Result`, as it is told."""

    files: list[Written]
    end_offset: int
    horizon_ms: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What it met; nothing was changed."""

    kind: Literal["damage", "disk", "bug"]
    message: str
    number: int = 0
    """Of the disk's error, or the position of the damage."""
    path: str = ""


Answer = Done | Failed

_encoder = msgspec.msgpack.Encoder()
_task_decoder = msgspec.msgpack.Decoder(Task)
_answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(told: Task | Answer) -> bytes:
    """The content of a frame."""
    return _encoder.encode(told)


def decode_answer(data: bytes) -> Answer:
    """What `encode` was given."""
    return _answer_decoder.decode(data)


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    """Raises BrokenPipeError where nobody reads any more."""
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes:
    """Raises EOFError where it has ended."""
    head = pipe.read(_LENGTH.size)
    data = pipe.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not data:
        raise EOFError
    return data


def answer_to(task: Task) -> Answer:
    """Compact."""
    files = OpenFiles(SystemDisk(), _OPEN_FILES)
    try:
        result = compaction.run(task.plan(files), files, _go_on, read_keys_compiled)
    except CorruptData as error:
        return Failed("damage", str(error), error.position if isinstance(error, BadBatch) else 0)
    except OSError as error:
        return Failed("disk", error.strerror or str(error), error.errno or 0, str(error.filename or ""))
    except Exception as error:  # its owner logs it, and goes on
        return Failed("bug", repr(error))
    assert result is not None, "nobody stops it"
    return _done(result)


def _go_on() -> None:
    """There is nobody beside it in this process; to stop it, it is killed."""


def _done(result: Result) -> Done:
    files = []
    for cleaned in result.files:
        segment = cleaned.segment
        offsets, times = bytes(segment.offset_index.data), bytes(segment.time_index.data)
        files.append(Written([each.base_offset for each in cleaned.replaces], segment.state(), offsets, times))
    return Done(files, result.end_offset, result.horizon_ms)


def main() -> None:
    """Answer until stdin ends."""
    try:
        die_with_parent()
    except ParentGone:
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal, or a shutdown, tells all: the log says what follows
        signal.signal(number, signal.SIG_IGN)
    configure("cleaner", level="warning")
    gc.disable()  # nothing here refers to itself, and the collector would look at every key again and again
    os.nice(_NICENESS)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anybody prints is no answer
    while True:
        try:
            task = _task_decoder.decode(read_frame(sys.stdin.buffer))
            write_frame(answers, encode(answer_to(task)))
        except (EOFError, BrokenPipeError):
            return
