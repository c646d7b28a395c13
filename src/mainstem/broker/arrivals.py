"""The bytes that a client sends, cut into frames, and what they hold of the budget of requests.

What arrives goes to the scratch buffer, which all connections share: several frames come with one read, and each is
copied out of it. One that is not whole is received into a buffer of its own (`arriving_frame`).
"""

from collections import deque
from typing import Final
from weakref import ref

from mainstem.broker.arriving_frame import ArrivingFrame
from mainstem.broker.request_memory import ALLOWANCE, Reader, RequestMemory
from mainstem.wire.errors import MalformedFrame
from mainstem.wire.frames import SIZE

SCRATCH_BYTES: Final = 65_536

# How what others send begins, who took this port for theirs; as a size it is more than any limit's.
_OTHERS: Final = {b"\x16\x03": "; these bytes are TLS's, and this listener has none"} | dict.fromkeys(
    (b"GE", b"PO", b"PU", b"HE", b"OP", b"DE"), "; these bytes are HTTP's, and this is Kafka's protocol"
)


class Arrivals:
    """Of one connection."""

    def __init__(self, reader: Reader, scratch: memoryview) -> None:
        self.requests: deque[bytearray] = deque()
        """Whole frames, which have not been started."""
        self.has_more = False
        """So have more that came with them, and are no frames yet."""
        self.held = 0
        """Bytes of the frame that arrives, and of requests that have no answer yet."""
        self.memory: RequestMemory
        self.waits_for_room = False
        self.most_requests = 1
        self._reader_ref = ref(reader)  # which refers to this: else both would stay until the collector comes by
        self._host = reader.client_host
        self._scratch = scratch
        self._unsplit = b""  # what has arrived and is in no frame: part of a size, or more requests than there may be
        self._leased = 0  # bytes of the budget for what is read next
        self._arriving: ArrivingFrame | None = None
        self._most_bytes = 1
        self._limit_setting = ""
        self._one_at_a_time = False

    @property
    def _reader(self) -> Reader:
        reader = self._reader_ref()
        assert reader is not None
        return reader

    def set_limits(
        self,
        memory: RequestMemory,
        most_requests: int,
        most_bytes: int,
        limit_setting: str,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        """So many requests, of at most so many bytes, which that setting says; none beyond what nobody is asked for
        while another one has no answer, if they are to come `one_at_a_time`.
        """
        self.most_requests, self._most_bytes, self._limit_setting = most_requests, most_bytes, limit_setting
        self.memory, self._one_at_a_time = memory, one_at_a_time

    def move(self, memory: RequestMemory) -> None:
        """What it holds is of another budget."""
        self._give_lease_back()
        held = self.held
        self.hold(-held)
        self.memory.leave(self._reader)
        self.memory = memory
        self.hold(held)
        self.waits_for_room = False

    def buffer(self) -> memoryview:
        """Where what is read next belongs."""
        if self._arriving is not None:
            return self._arriving.free
        begun = len(self._unsplit)
        if begun:
            self._scratch[:begun] = self._unsplit
        return self._scratch[begun:]

    def add(self, nbytes: int) -> bool:
        """So many bytes have been read. False if they are amid a frame, and no more than that.

        Raises:
            MalformedFrame: what comes next is no frame; those before it are among `requests`.
        """
        if (arriving := self._arriving) is None:
            self._give_lease_back()
            self._split_scratch(len(self._unsplit) + nbytes)
            return True
        arriving.filled += nbytes
        if arriving.missing:
            return False
        self.requests.append(arriving.room)
        self._arriving = None
        self.memory.arrived(self._reader)
        return True

    @property
    def arrived_bytes(self) -> int:
        """Of a request that has arrived in part."""
        return 0 if self._arriving is None else self._arriving.filled

    @property
    def is_full(self) -> bool:
        """What is to be read next has no room yet."""
        return self._arriving is not None and self._arriving.is_full

    def split_more(self) -> None:
        """Those that came with as many requests as there may be, which have been started.

        Raises:
            MalformedFrame: as `add`.
        """
        if self.has_more:
            self._scratch[: len(self._unsplit)] = self._unsplit
            self._split_scratch(len(self._unsplit))

    def _split_scratch(self, filled: int) -> None:
        """Cut what the scratch buffer holds into frames, as many as there may be requests; it is everybody's, so
        nothing is left in it.
        """
        scratch, position = self._scratch, 0
        limit = self._most_bytes
        if self._unsplit:
            self.hold(-len(self._unsplit))
            self._unsplit, self.has_more = b"", False
        while filled - position >= SIZE.size:
            if len(self.requests) >= self.most_requests:
                self.has_more = True
                break
            (size,) = SIZE.unpack_from(scratch, position)
            if not 0 < size <= limit:
                other = _OTHERS.get(bytes(scratch[position : position + 2]), "")
                raise MalformedFrame(f"a frame of {size} bytes; the limit is {limit} ({self._limit_setting}){other}")
            position += SIZE.size
            if filled - position >= size:
                self.requests.append(bytearray(scratch[position : position + size]))
                self.hold(size)
                position += size
                continue
            self._arriving = ArrivingFrame(size, scratch[position:filled])
            self.hold(filled - position)
            position = filled
        if position < filled:
            self._unsplit = bytes(scratch[position:filled])
            self.hold(filled - position)

    def drop_requests(self) -> None:
        """Those that have not been started."""
        self.requests.clear()
        self.has_more = False

    def end(self, at_work: int) -> None:
        """Nobody reads any more; what has been started holds so many bytes still."""
        self.drop_requests()
        self._arriving = None
        self.hold(at_work - self.held)
        self.leave()

    def leave(self) -> None:
        """What it holds has become less, and its client has gone."""
        self.memory.leave(self._reader, at_work=max(self.held - ALLOWANCE, 0))

    def hold(self, size: int) -> None:
        """So many bytes more, or less."""
        more = self._of_budget(size)
        self.held += size
        if more > 0:
            self.memory.take(more, self._host)
        elif more < 0:
            self.memory.give(-more, self._host)

    def _of_budget(self, size: int) -> int:
        """How much of the budget it has in addition if it holds so many bytes more."""
        return max(self.held + size, ALLOWANCE) - max(self.held, ALLOWANCE)

    def may_be_read(self, *, is_first: bool) -> bool:
        """There is room for what comes next, or else it waits. `is_first`: all that was started is answered."""
        arriving = self._arriving
        if arriving is None:
            has_room = self._has_lease()
        elif arriving.may_grow:
            has_room = True
        else:
            has_room = self._has_room_for(arriving, is_first=is_first and not self.requests)
        if arriving is not None and has_room and arriving.is_full:
            arriving.grow()
        self._waits(not has_room)
        return has_room

    def is_not_read(self) -> None:
        """For other reasons, and so it does not wait for room."""
        self._waits(False)

    def _waits(self, waits: bool) -> None:
        if self.waits_for_room and not waits:
            self.memory.wait_no_more(self._reader)
        self.waits_for_room = waits

    def _has_room_for(self, arriving: ArrivingFrame, *, is_first: bool) -> bool:
        more = self._of_budget(arriving.missing)
        if more and not is_first and self._one_at_a_time:
            return False
        if more and not self.memory.reserve(self._reader, more, may_have_turn=is_first):
            return False
        if more:
            self.memory.expect(self._reader)
        self.held += arriving.missing
        arriving.may_grow = True
        return True

    def _has_lease(self) -> bool:
        """Whether there is room for what comes next, however much of it is read at once."""
        if self.held - self._leased <= ALLOWANCE - SCRATCH_BYTES:
            self._give_lease_back()
        elif not self._leased:
            more = self._of_budget(SCRATCH_BYTES)
            if more and not self.memory.reserve(self._reader, more, may_have_turn=False):
                return False
            self.held += SCRATCH_BYTES
            self._leased = SCRATCH_BYTES
        return True

    def _give_lease_back(self) -> None:
        if self._leased:
            self.hold(-self._leased)
            self._leased = 0
