"""What a client is to be sent, and what that holds of the memory of answers until its socket has taken it."""

import asyncio
from collections import deque
from typing import Any, Final
from weakref import ref

from mainstem.broker import sending
from mainstem.broker.answer_memory import AnswerMemory, Taker
from mainstem.broker.pending import Pending
from mainstem.wire.fetch import API_KEY as FETCH
from mainstem.wire.produce import API_KEY as PRODUCE
from mainstem.wire.share_fetch import API_KEY as SHARE_FETCH

_MOST_ANSWERS: Final = 1_048_576  # bytes; with more to send, no further request is started
_FETCHES: Final = (FETCH, SHARE_FETCH)  # which ask for room before they read
# Mostly, their answers are hardly larger than they are, and others wait for them: Produce, ListOffsets, OffsetCommit,
# FindCoordinator, Heartbeat, LeaveGroup, SaslHandshake, ApiVersions, InitProducerId, OffsetForLeaderEpoch,
# AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, SaslAuthenticate, ConsumerGroupHeartbeat,
# ShareGroupHeartbeat, ShareAcknowledge, StreamsGroupHeartbeat.
_SMALL: Final = frozenset((PRODUCE, 2, 8, 10, 12, 13, 17, 18, 22, 23, 24, 25, 26, 28, 36, 68, 76, 79, 88))


class Outbox:
    """Of one connection."""

    def __init__(self, taker: Taker, fetched: AnswerMemory, unasked: AnswerMemory) -> None:
        self.held = 0
        """Bytes of large answers that the socket has not taken yet."""
        self.is_stuck = False
        """The client does not take what it is sent."""
        self.unsent: deque[Any] = deque()
        """Chunks, from a part of a file on, that wait until the socket takes more."""
        self._taker_ref = ref(taker)  # which refers to this: else both would stay until the collector comes by
        self._fetched = fetched
        self._unasked = unasked
        self._written: list[Pending] = []  # of what is held: given to the transport, or to be given from `unsent`
        self._transport: asyncio.Transport
        self._takes_slices = False

    @property
    def _taker(self) -> Taker:
        taker = self._taker_ref()
        assert taker is not None
        return taker

    def open(self, transport: asyncio.Transport, *, takes_slices: bool) -> None:
        """There is a socket; answers may have parts of files in them if nothing is encrypted."""
        self._transport, self._takes_slices = transport, takes_slices

    # --- whether there is room ---------------------------------------------------------------------------------------

    def has_enough(self) -> bool:
        """It is to take answers before it gets more of them: one, where others want the memory."""
        if self.held >= _MOST_ANSWERS:
            return True
        full = next((each for each in (self._fetched, self._unasked) if not each.has_room), None)
        if full is None or not self.held:
            return False
        full.wait(self._taker)
        return True

    def may_answer(self, api_key: int) -> bool:
        """There is room for an answer to that, however large; if not, the connection is told to ask again."""
        return api_key in _FETCHES or api_key in _SMALL or self._unasked.may_make(self._taker)

    @property
    def turn_is_full(self) -> bool:
        """What is answered next is for the next turn of the loop."""
        return self._unasked.turn_is_full

    # --- what is held ------------------------------------------------------------------------------------------------

    def hold(self, pending: Pending) -> None:
        """It has its answer."""
        if pending.answer_size:
            self.held += pending.answer_size
            self._memory_of(pending).hold(self._taker, pending.answer_size)

    def _memory_of(self, pending: Pending) -> AnswerMemory:
        return self._fetched if pending.api_key in _FETCHES else self._unasked

    def let_go_of_written(self) -> None:
        """The socket has taken it."""
        for pending in self._written:
            self.held -= pending.answer_size
            self._memory_of(pending).let_go(self._taker, pending.answer_size)
        self._written.clear()

    def clear(self) -> None:
        """Nothing more is sent."""
        self.unsent.clear()
        self.held = 0
        self._written.clear()
        self._fetched.leave(self._taker)
        self._unasked.leave(self._taker)

    # --- sending -----------------------------------------------------------------------------------------------------

    def put(self, chunks: list[Any], large: list[Pending]) -> None:
        """Give the transport what it takes as it is, the rest is `unsent`; `large` are those whose answers are held."""
        self._written += large
        if self.unsent or (large and (not self._takes_slices or sending.has_slices(chunks))):
            self.unsent += chunks
            return
        if len(chunks) == 1:
            self._transport.write(chunks[0])
        else:
            self._transport.writelines(chunks)
        if large and not self.is_stuck:
            self.let_go_of_written()

    def send(self) -> None:
        """What is unsent, as far as the socket takes it: one part of a file, that has to be read, in a turn.

        Raises:
            OSError, CorruptData: of a file.
        """
        if self._takes_slices:
            sending.send(self._transport, self.unsent)
        else:
            sending.send_encrypted(self._transport, self.unsent, lambda: self.is_stuck)

    @property
    def unsent_bytes(self) -> int:
        """What was written and the client has not taken."""
        return self._transport.get_write_buffer_size() + sum(map(len, self.unsent))
