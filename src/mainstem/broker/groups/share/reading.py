"""From the bytes of a read to what a share group can acquire, and from what it has got to the bytes to send. Pure."""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from mainstem.broker.groups.share.partition import Acquired, Fetched
from mainstem.log.index import AbortedTransaction
from mainstem.records import iter_spans
from mainstem.records.batch import CONTROL, TRANSACTIONAL

_PRODUCER: Final = Struct(">21xh20xq")  # attributes, producer id


def fetched(pieces: Iterable[bytes], aborted: Sequence[AbortedTransaction] = ()) -> list[Fetched]:
    """The batches that were read. Those of `aborted` transactions are not to be delivered; markers are, as in Kafka:
    clients pass over them, and say so.
    """
    of_producers: dict[int, list[AbortedTransaction]] = {}
    for each in aborted:
        of_producers.setdefault(each.producer_id, []).append(each)
    found = []
    for piece in pieces:
        for span in iter_spans(piece):
            deliverable = True
            if of_producers:
                attributes, producer_id = _PRODUCER.unpack_from(piece, span.position)
                if attributes & TRANSACTIONAL and not attributes & CONTROL:
                    deliverable = not any(
                        each.first_offset <= span.base_offset <= each.last_offset
                        for each in of_producers.get(producer_id, ())
                    )
            found.append(Fetched(span.base_offset, span.last_offset, deliverable))
    return found


def to_send(pieces: Iterable[bytes], acquired: Sequence[Acquired]) -> list[memoryview]:
    """The batches that hold records of `acquired`, which is in order; neighbours are one chunk, nothing is copied."""
    chunks: list[memoryview] = []
    place = 0
    for piece in pieces:
        view = memoryview(piece)
        begin = end = 0
        for span in iter_spans(piece):
            while place < len(acquired) and acquired[place].last < span.base_offset:
                place += 1
            if place == len(acquired):
                break
            if acquired[place].first > span.last_offset:
                continue
            if span.position != end:
                if end > begin:
                    chunks.append(view[begin:end])
                begin = span.position
            end = span.end
        if end > begin:
            chunks.append(view[begin:end])
    return chunks
