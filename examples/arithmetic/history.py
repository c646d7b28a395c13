"""What happened, as the log has it: every record of a primary with what its readers made of it."""

from collections import Counter
from typing import NamedTuple

from mainstem.client.connection import Connection
from mainstem.client.reader import CommittedReader
from mainstem.replicate.election import Lineage, Verdict
from mainstem.replicate.records import Admission, Beat, Claim, Record, Result, decode


class Term(NamedTuple):
    """A primary's time: from its claim to the next."""

    term: int
    node: str
    began_ms: int
    said_ms: int
    """When its last accepted record was appended."""
    results: int
    discarded: int
    """Records of it that did not count."""


def read_log(connection: Connection, topic: str) -> list[tuple[int, int, Record]]:
    """Offset, time in ms, and record, of all there are now."""
    with CommittedReader(connection, topic, {0: 0}, deleted="error") as reader:
        messages = [message for some in reader for message in some]
    return [(each.offset(), each.timestamp()[1], decode(each.offset(), each.value())) for each in messages]


def terms(log: list[tuple[int, int, Record]]) -> list[Term]:
    """Who led when, and what became of it."""
    lineage, nodes, began = Lineage(), dict[int, str](), dict[int, int]()
    said, results, discarded = dict[int, int](), Counter[int](), Counter[int]()
    for offset, time_ms, record in log:
        if isinstance(record, Claim):
            lineage.claim(offset)
            nodes[offset], began[offset], said[offset] = record.node, time_ms, time_ms
        elif isinstance(record, (Beat, Result, Admission)):
            if lineage.judge(offset, record.term, record.seq) is Verdict.ACCEPTED:
                said[record.term] = time_ms
                results[record.term] += isinstance(record, Result)
            else:
                discarded[record.term] += 1
    return [Term(term, nodes[term], began[term], said[term], results[term], discarded[term]) for term in nodes]


def timeline(log: list[tuple[int, int, Record]]) -> list[str]:
    """One line for each term, with the silence before it."""
    found = terms(log)
    lines = []
    for number, each in enumerate(found):
        silence = (each.began_ms - found[number - 1].said_ms) / 1000 if number else 0.0
        lost = f", {each.discarded} late records discarded" if each.discarded else ""
        start = (each.began_ms - found[0].began_ms) / 1000
        lines.append(
            f"term {each.term:5}  {each.node}  at {start:6.2f} s, after {silence:5.2f} s of silence: {each.results} results{lost}"
        )
    return lines
