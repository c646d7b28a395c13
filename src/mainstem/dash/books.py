"""What an audit says, in a few words."""

from collections import Counter
from collections.abc import Iterable

from mainstem.audit.books import Line, Verdict
from mainstem.dash.state import AuditResult

_WORST_FIRST = (Verdict.WRONG, Verdict.IN_FLIGHT, Verdict.COMPACTED, Verdict.BALANCED)
_MOST_LINES = 20


def summed_up(lines: Iterable[Line], at_ms: int, seconds: float) -> AuditResult:
    """The verdicts counted, the worst of each topic, and the first lines that are wrong."""
    counts, topics, wrong = Counter[str](), dict[str, Verdict](), list[str]()
    for line in lines:
        counts[line.verdict.value] += 1
        topic = line.partition.topic
        topics[topic] = min(topics.get(topic, line.verdict), line.verdict, key=_WORST_FIRST.index)
        if line.verdict is Verdict.WRONG and len(wrong) < _MOST_LINES:
            wrong.append(
                f"{line.partition} {line.tier} {line.name}: expected {line.expected}, found {line.found} {line.detail}"
            )
    return AuditResult(
        at_ms, False, seconds, dict(counts), {topic: verdict.value for topic, verdict in topics.items()}, wrong
    )
