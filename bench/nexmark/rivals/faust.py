"""The queries on Faust. Its windows are closed by the clock of the machine, which no backlog can wait for, and it has
no sessions and no joins: q5 counts in a table and tells of every change, as its documentation has it, and q11 is
written by hand.
"""

import heapq
import sys
from collections import defaultdict
from typing import Any

import faust

from bench.nexmark.rivals import common
from bench.nexmark.rivals.common import BID, BID_BY_BIDDER, DELAY_MS, GAP_MS, WINDOW_MS, Row

PARTITIONS = 2


def main() -> None:
    options = common.options()
    app = faust.App(
        options.group,
        broker=f"kafka://{options.bootstrap}",
        store="memory://",
        value_serializer="json",
        topic_partitions=PARTITIONS,
        topic_replication_factor=1,
        processing_guarantee="exactly_once" if options.exactly_once else "at_least_once",
        broker_commit_interval=options.commit_seconds,
        producer_acks=-1,
        producer_linger_ms=20,
        stream_wait_empty=False,
        web_enabled=False,
        datadir=str(options.state / f"faust-{options.process}"),
    )
    topic = BID_BY_BIDDER if options.query in ("q11", "q18") else BID
    app.agent(app.topic(topic, value_type=None, value_serializer="json"))(agent_of(app, options))
    sys.argv = [sys.argv[0]]
    options.meet()
    faust.Worker(app, loglevel="WARNING").execute_from_commandline()


def agent_of(app: Any, options: common.Options) -> Any:
    """Sends what the query makes of each bid."""
    step, out = QUERIES[options.query](app, options), app.topic(options.output, value_serializer="json")
    mark = options.first_record()
    keyed = options.query in ("q5", "q18")

    async def process(stream: Any) -> None:
        first = True
        async for event in stream.events():
            if first:
                first = False
                mark()
            for row in step(event.value, event.message.partition):
                await out.send(key=common.key_of(row) if keyed else None, value=row)

    return process


def q1(app: Any, options: common.Options) -> Any:
    return lambda bid, _: (common.in_dollars(bid),)


def q2(app: Any, options: common.Options) -> Any:
    return lambda bid, _: (common.chosen(bid),) if common.is_chosen(bid) else ()


def q5(app: Any, options: common.Options) -> Any:
    counts = app.Table("counts", default=int, partitions=PARTITIONS)

    def step(bid: Row, partition: int) -> tuple[Row]:
        auction, start = bid["auction"], bid["at"] // WINDOW_MS * WINDOW_MS
        key = f"{auction}-{start}"
        counts[key] += 1
        return ({"auction": auction, "start": start, "bids": counts[key]},)

    return step


def q11(app: Any, options: common.Options) -> Any:
    """Open sessions by bidder, as [start, last, bids]; they are closed when the time of the partition says so."""
    table = app.Table("sessions", partitions=PARTITIONS)
    newest: dict[int, int] = defaultdict(int)
    ends: dict[int, list[tuple[int, str]]] = defaultdict(list)

    def step(bid: Row, partition: int) -> list[Row]:
        at, key = bid["at"], str(bid["bidder"])
        found = [at, at, 1]
        apart = []
        for each in table.get(key) or ():
            if each[0] - GAP_MS < at < each[1] + GAP_MS:
                found = [min(found[0], each[0]), max(found[1], each[1]), found[2] + each[2]]
            else:
                apart.append(each)
        table[key] = [*apart, found]
        if found[2] == 1:
            heapq.heappush(ends[partition], (at + GAP_MS, key))
        newest[partition] = max(newest[partition], at)
        return list(closed(partition, newest[partition] - DELAY_MS))

    def closed(partition: int, time: int) -> Any:
        due = ends[partition]
        while due and due[0][0] < time:
            _, key = heapq.heappop(due)
            left = []
            for each in table.get(key) or ():
                if each[1] + GAP_MS < time:
                    yield {"bidder": int(key), "start": each[0], "last": each[1], "bids": each[2]}
                else:
                    left.append(each)
            if left:
                table[key] = left
                heapq.heappush(due, (min(each[1] for each in left) + GAP_MS, key))
            elif key in table:
                del table[key]

    return step


def q13(app: Any, options: common.Options) -> Any:
    side = options.side
    return lambda bid, _: (common.enriched(bid, side),)


def q18(app: Any, options: common.Options) -> Any:
    last = app.Table("last", partitions=PARTITIONS)

    def step(bid: Row, partition: int) -> tuple[Row, ...]:
        key = f"{bid['auction']}-{bid['bidder']}"
        if not common.newer(bid, last.get(key)):
            return ()
        last[key] = [bid["at"], bid["price"]]
        return (common.last_bid(bid),)

    return step


QUERIES = {"q1": q1, "q2": q2, "q5": q5, "q11": q11, "q13": q13, "q18": q18}

if __name__ == "__main__":
    main()
