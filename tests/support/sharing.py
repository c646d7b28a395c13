"""A member of a share group, by hand: its session, what it gets and what it says of it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from mainstem.records import Record, decode_records, iter_spans
from mainstem.wire.errors import Code
from tests.support.raw import RawClient

OK = Code.none
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


class ShareMember:
    """A connection of its own, and its share session, of one topic."""

    def __init__(self, client: RawClient, group: str, topic_id: UUID, member_id: str | None = None) -> None:
        self.client, self.group, self.topic_id = client, group, topic_id
        self.member_id = member_id or uuid4().hex
        self.epoch = 0
        self.last: Any = None
        """The last answer."""

    def fetch(
        self,
        *partitions: int,
        epoch: int | None = None,
        acks: Mapping[int, Sequence[Sequence[int]]] | None = None,
        version: int = 2,
        wait: int = 0,
        records: int = 500,
        batch: int = 500,
        forget: Sequence[int] = (),
        **fields: Any,
    ) -> Any:
        """{partition: (code, acquired, values)}, or the code of the answer; `acks`: {partition: [(first, last, type of
        all, or of each), ...]}."""
        epoch = self.epoch if epoch is None else epoch
        named = {number: (acks or {}).get(number, ()) for number in (*partitions, *(acks or {}))}
        answer = self.client.call(
            78,
            version,
            group_id=fields.pop("group_id", self.group),
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait=wait,
            min_bytes=fields.pop("min_bytes", 1),
            max_bytes=fields.pop("max_bytes", 1 << 20),
            max_records=records,
            batch_size=batch,
            topics=topics_of(fields.pop("topic_id", self.topic_id), named),
            forgotten_topics_data=[{"topic_id": self.topic_id, "partitions": list(forget)}] if forget else [],
            **fields,
        )
        self.last = answer
        if answer.error_code != OK:
            return Code(answer.error_code)
        if epoch >= 0:
            self.epoch = epoch + 1
        found: dict[int, tuple[Code, list[tuple[int, int, int]], list[bytes | None]]] = {}
        for topic in answer.responses:
            for each in topic.partitions:
                acquired = [(a.first_offset, a.last_offset, a.delivery_count) for a in each.acquired_records]
                values = [record.value for record in records_of(each.records or b"")]
                found[each.partition_index] = (Code(each.error_code), acquired, values)
        return found

    def acquired(self, *partitions: int, until: int = 1, **fields: Any) -> list[tuple[int, int, int]]:
        """What it has got of partition 0, asking until it is so many records."""
        found: list[tuple[int, int, int]] = []
        deadline = time.monotonic() + 30
        while sum(last - first + 1 for first, last, _ in found) < until and time.monotonic() < deadline:
            answer = self.fetch(*(partitions if self.epoch else partitions or (0,)), wait=500, **fields)
            assert isinstance(answer, dict), answer
            found += answer.get(0, (OK, [], []))[1]
        return found

    def acknowledge(
        self,
        *batches: Sequence[int],
        epoch: int | None = None,
        partition: int = 0,
        version: int = 2,
        topic_id: UUID | None = None,
        **fields: Any,
    ) -> Any:
        """The codes of the partitions, or that of the answer."""
        epoch = self.epoch if epoch is None else epoch
        answer = self.client.call(
            79,
            version,
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=topics_of(topic_id or self.topic_id, {partition: batches}) if batches else [],
            **fields,
        )
        self.last = answer
        if answer.error_code != OK:
            return Code(answer.error_code)
        if epoch >= 0:
            self.epoch = epoch + 1
        return [Code(each.error_code) for topic in answer.responses for each in topic.partitions]

    def acknowledged_on_fetch(self) -> dict[int, Code]:
        """The codes of acknowledgements that the last fetch brought."""
        return {
            each.partition_index: Code(each.acknowledge_error_code)
            for topic in self.last.responses
            for each in topic.partitions
        }


def topics_of(topic_id: UUID, partitions: Mapping[int, Sequence[Sequence[int]]]) -> list[dict[str, Any]]:
    """The topics of a request, of one topic: its partitions, and what is acknowledged of each."""
    found = []
    for number, batches in partitions.items():
        said = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
            for first, last, *types in batches
        ]
        found.append({"partition_index": number, "acknowledgement_batches": said})
    return [{"topic_id": topic_id, "partitions": found}]


def records_of(data: bytes) -> list[Record]:
    """The records of all batches."""
    return [record for span in iter_spans(data) for record in decode_records(data[span.position : span.end])]
