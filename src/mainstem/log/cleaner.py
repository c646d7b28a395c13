"""Where compaction runs: in a process of its own, so that the event loop need not share its interpreter with it.

A thread of pure Python lets nobody else run for 5 ms at a time. What a thread does in a moment stays there, since a
process takes 0.2 s of the processor to start, and so does all on a disk that is not the operating system's. The
process is started when it is first needed and ended when all is compacted. It is killed where the log is closed
meanwhile: what it has written is nobody's until it has answered.
"""

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from mainstem.core.process import PARENT, start_child
from mainstem.log import compaction
from mainstem.log.cleaner_process import Answer, Done, Failed, Task, decode_answer, encode, read_frame, write_frame
from mainstem.log.compaction import CLEANED, Breath, Cleaned, Plan, Result
from mainstem.log.disk import SystemDisk
from mainstem.log.errors import StorageError
from mainstem.log.segment import BadBatch, OpenFiles, Segment
from mainstem.log.threads import FileThreads

PROCESS_BYTES = 8 << 20
"""What is larger goes to the process."""


class Cleaner:
    """Runs one compaction after the other, for the event loop that made it."""

    def __init__(self) -> None:
        self._threads = FileThreads(1)
        self._stop = threading.Event()
        self._changing = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        """Of its process; 0 where there is none."""
        child = self._child
        return 0 if child is None else child.pid

    def run(self, plan: Plan, files: OpenFiles) -> "asyncio.Future[Result | None]":
        """Write the cleaned files, durably; None if it was stopped meanwhile.

        Raises:
            BadBatch: a batch does not check out; nothing was changed.
            OSError: the disk refused; nothing was changed.
            StorageError: the process has ended; nothing was changed.
        """
        for segment in plan.segments:
            segment.trust.end(segment.size)  # what is read for this, here or there, comes back from the disk unchecked
        size = sum(segment.size for segment in plan.segments)
        if size < PROCESS_BYTES or not isinstance(files.disk, SystemDisk) or not sys.executable:
            return self._threads.run(compaction.run, plan, files, Breath(self._stop))
        return self._threads.run(self._run, plan, Task.of(plan), files)

    def _run(self, plan: Plan, task: Task, files: OpenFiles) -> Result | None:
        try:
            child = self._living()
            if child is None:
                return None
            answer = _ask(child, task)
        except (EOFError, BrokenPipeError):
            code = self._end()
            _discard(plan.segments[0].directory)
            if self._stop.is_set():
                return None
            raise StorageError(f"{plan.segments[0].directory}: the cleaner's process ended ({code})") from None
        if isinstance(answer, Failed):
            raise _error_of(answer)
        return _result_of(answer, plan, files)

    def _living(self) -> "subprocess.Popen[bytes] | None":
        with self._changing:
            if self._stop.is_set():
                return None
            if self._child is None:
                self._child = start_child(
                    [sys.executable, "-P", "-c", "from mainstem.log.cleaner_process import main; main()"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, PARENT: str(os.getpid())},
                )
            return self._child

    def rest(self) -> "asyncio.Future[int]":
        """End the process, until it is needed again."""
        return self._threads.run(self._end)

    def _end(self) -> int:
        with self._changing:
            child, self._child = self._child, None
        if child is None:
            return 0
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        return child.wait()

    def stop(self) -> None:
        """Let what runs end at once; nothing runs any more."""
        self._stop.set()
        with self._changing:
            if self._child is not None:
                self._child.kill()

    def close(self) -> None:
        """Stop, and let go of thread and process."""
        self.stop()
        self._threads.close()
        self._end()


def _ask(child: "subprocess.Popen[bytes]", task: Task) -> Answer:
    assert child.stdin is not None
    assert child.stdout is not None
    write_frame(child.stdin, encode(task))
    return decode_answer(read_frame(child.stdout))


def _discard(directory: Path) -> None:
    """Remove what a process that has ended began to write; the directory may have been deleted, too."""
    for path in directory.glob(f"*{CLEANED}"):
        path.unlink(missing_ok=True)


def _error_of(answer: Failed) -> Exception:
    if answer.kind == "damage":
        return BadBatch(answer.message, answer.number)
    if answer.kind == "disk":
        return OSError(answer.number, answer.message, answer.path or None)
    return StorageError(f"the cleaner's process: {answer.message}")


def _result_of(answer: Done, plan: Plan, files: OpenFiles) -> Result:
    of_offset = {segment.base_offset: segment for segment in plan.segments}
    cleaned = []
    for written in answer.files:
        replaces = [of_offset[base_offset] for base_offset in written.base_offsets]
        segment = Segment(replaces[0].directory, replaces[0].base_offset, files)
        segment.take_over(written.state, written.offset_entries, written.time_entries)
        cleaned.append(Cleaned(replaces, segment, segment.path.with_name(segment.path.name + CLEANED)))
    return Result(cleaned, answer.end_offset, answer.horizon_ms)
