"""Reading what is not in the page cache: around it, a megabyte at a time, and ahead of who reads on.

Through the page cache the kernel reads megabytes ahead at once, and every sync of the journal waits behind them; its
pages push out those that others want; and it gives half of the disk's rate. So one thread reads around it, one piece at
a time, for all readers in turn. Who comes back for what follows what he has read twice is read ahead for: the next
pieces are there while the last ones are on their way to him.

What was measured is in docs/decisions/log-speed.md.
"""

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from mainstem.core import CorruptData
from mainstem.core.threads import LastingThreads
from mainstem.log.reading import READ_STEP, Batches, Place, next_batches
from mainstem.log.segment import Segment
from mainstem.log.threads import FileThreads
from mainstem.log.window import Window, span_memory

LARGE_BYTES: Final = 2**18
"""Smaller reads go through the page cache: most of what the kernel reads ahead is of use to who reads so little."""

_AHEAD: Final = 4  # pieces, of a megabyte at most
_STREAMS: Final = 6  # readers that are read ahead for; one more, and who has come least lately is forgotten
_FOLLOWED: Final = 64  # readers of whom it is known where they are
_IDLE_SECONDS: Final = 5.0  # after which nobody is expected to come back


class _Stream:
    """The next pieces for one reader."""

    def __init__(self, window: Window, segment: Segment, last: Batches, limit: int, most: int) -> None:
        """What comes after `last`."""
        self.segment = segment
        self.place = last.after
        """Of what is to be read next; the thread's."""
        self.offset = last.next_offset
        self.limit = limit
        self.most = most
        self.window = window
        self.pieces: deque[Batches] = deque()
        self.running = False
        self.over = False
        """Nothing more comes: the end, an error, or nobody wants it."""
        self.lock = threading.Lock()
        self.arrived = asyncio.Event()
        self.used_at = 0.0


class ColdReads:
    """All cold reads of a log directory; made and asked on the event loop."""

    def __init__(self, threads: FileThreads) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._pool = LastingThreads(1, "log-cold")
        self._blocks = LastingThreads(1, "log-cold-blocks")
        self._followed: OrderedDict[tuple[Path, int], None] = OrderedDict()
        self._streams: OrderedDict[tuple[Segment, int], _Stream] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._spans = span_memory()
        self._window = Window(self._blocks, self._spans, ahead=False)

    def has_ready(self, segment: Segment, offset: int, most: int) -> bool:
        """Whether what comes at `offset` has been read already, and is no more than so much."""
        stream = self._streams.get((segment, offset))
        return stream is not None and bool(stream.pieces) and len(stream.pieces[0].data) <= most

    async def read(
        self,
        segment: Segment,
        place: Place,
        offset: int,
        limit: int,
        most: int,
        *,
        at_least_one: bool,
        around: bool,
    ) -> Batches | None:
        """The next batches, as `reading.next_batches`; without `around` through the page cache, where most of them are.

        Raises:
            OSError, CorruptData: as there.
        """
        key = segment, offset
        stream = self._streams.pop(key, None)
        if stream is not None and not around:
            self._drop(stream)
        elif stream is not None:
            found = await self._take(stream, limit, most)
            if found is not None:
                return found
        asked = partial(next_batches, place=place, offset=offset, limit=limit, most=most, at_least_one=at_least_one)
        if most < LARGE_BYTES or not around:
            file = segment.file
            return await self._threads.run(
                lambda: self._lasting(asked(lambda position, size: memoryview(file.read(size, position))))
            )
        self._set_timer()
        found = await self._loop.run_in_executor(self._pool, partial(self._read_once, segment, place.end, asked))
        if found is not None and found.data:
            came_from, goes_on = (segment.path, offset), (segment.path, found.next_offset)
            if came_from in self._followed:
                del self._followed[came_from]
                self._begin(_Stream(Window(self._blocks, self._spans, ahead=True), segment, found, limit, most))
            else:
                self._followed[goes_on] = None
                if len(self._followed) > _FOLLOWED:
                    self._followed.popitem(last=False)
        return found

    def _begin(self, stream: _Stream) -> None:
        if not stream.segment.retired:
            stream.running = True
            self._pool.submit(self._read_ahead, stream)
            self._keep(stream)

    def _keep(self, stream: _Stream) -> None:
        """It is the one that was used last."""
        stream.used_at = self._loop.time()
        key = stream.segment, stream.offset
        other = self._streams.pop(key, None)
        if other is not None:  # two who read the same in step
            self._drop(other)
        self._streams[key] = stream
        while len(self._streams) > _STREAMS:
            self._drop(self._streams.popitem(last=False)[1])
        self._set_timer()

    async def _take(self, stream: _Stream, limit: int, most: int) -> Batches | None:
        """The next piece; None where there is none, or it is not for who asks now."""
        try:
            while not stream.pieces and stream.running:
                stream.arrived.clear()
                if not stream.pieces and stream.running:
                    await stream.arrived.wait()
        except asyncio.CancelledError:
            self._drop(stream)
            raise
        with stream.lock:
            piece = stream.pieces[0] if stream.pieces else None
            if piece is None:
                stream.over = True
                return None
            fits = piece.next_offset <= limit and len(piece.data) <= most
            if fits:
                stream.pieces.popleft()
                stream.limit, stream.most, stream.offset = limit, max(most, LARGE_BYTES), piece.next_offset
            again = fits and not stream.running and not stream.over
            stream.running = stream.running or again
        if again:
            self._pool.submit(self._read_ahead, stream)
        if stream.pieces or not stream.over:
            self._keep(stream)
        return msgspec.structs.replace(piece, is_full=True) if fits else None  # more may be there

    def _read_ahead(self, stream: _Stream) -> None:
        """One piece, in the thread; then others have their turn."""
        piece = None
        try:
            if not stream.over:
                place, segment = stream.place, stream.segment
                piece = self._lasting(
                    next_batches(
                        lambda position, size: stream.window.read(segment.file, size, position, place.end),
                        place,
                        place.next_offset,
                        stream.limit,
                        stream.most,
                        at_least_one=False,
                    )
                )
        except (OSError, CorruptData):
            pass  # who asks for it is told
        finally:
            with stream.lock:
                if piece is not None and piece.data:
                    stream.place = piece.after
                    stream.pieces.append(piece)
                else:
                    stream.over = True
                ahead = sum(len(each.data) for each in stream.pieces)
                stream.running = not stream.over and len(stream.pieces) < _AHEAD and ahead < _AHEAD * READ_STEP
                if stream.running:
                    try:
                        self._pool.submit(self._read_ahead, stream)
                    except RuntimeError:  # the log is closed
                        stream.over, stream.running = True, False
            with suppress(RuntimeError):  # the loop is gone
                self._loop.call_soon_threadsafe(stream.arrived.set)

    def _read_once(self, segment: Segment, until: int, asked: Callable[..., Batches | None]) -> Batches | None:
        """In the thread, for somebody who may not come back."""
        try:
            return self._lasting(asked(lambda position, size: self._window.read(segment.file, size, position, until)))
        finally:
            self._window.forget()

    def _lasting(self, found: Batches | None) -> Batches | None:
        """A large part is sent from where it lies; nobody keeps a span for a small one."""
        if found is None or (len(found.data) >= LARGE_BYTES and not self._spans.is_scarce):
            return found
        return msgspec.structs.replace(found, data=bytes(found.data))

    def _drop(self, stream: _Stream) -> None:
        with stream.lock:
            stream.over = True
            stream.pieces.clear()

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_IDLE_SECONDS, self._look_for_idle)

    def _look_for_idle(self) -> None:
        """Segments that were deleted are held open by who reads them; memory is wanted elsewhere."""
        self._timer = None
        since = self._loop.time() - _IDLE_SECONDS
        for key, stream in list(self._streams.items()):
            if stream.segment.retired or stream.used_at <= since:
                self._drop(self._streams.pop(key))
        if not self._streams:
            with suppress(RuntimeError):  # the log is closed
                self._pool.submit(self._spans.trim)
        if self._streams or not self._spans.is_whole:  # clients may be slow to take what was lent for them
            self._set_timer()

    def close(self) -> None:
        """Wait for what is being read, and let go of the thread."""
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams.values():
            self._drop(stream)
        self._streams.clear()
        self._followed.clear()
        self._pool.shutdown()
        self._blocks.shutdown()
