"""The queries on Bytewax: windows by the time of each key. At the end of its topics a flow closes them, and ends."""

from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
import orjson
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from bench.nexmark.rivals import common
from bench.nexmark.rivals.common import AUCTION, BID, BID_BY_BIDDER, DELAY_MS, PERSON, WINDOW_MS, Row

WINDOW = timedelta(milliseconds=WINDOW_MS)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH_MS = int(EPOCH.timestamp() * 1000)
"""From where it numbers its windows."""


def main() -> None:
    options = common.options()
    flow = Dataflow(options.query)
    rows = QUERIES[options.query](flow, options)
    keyed = options.query == "q18"
    records = op.map(
        "encode",
        rows,
        lambda row: KafkaSinkMessage(common.key_of(row).encode() if keyed else None, orjson.dumps(row)),
    )
    kop.output("out", records, brokers=[options.bootstrap], topic=options.output, add_config=PRODUCER)
    home = options.state / "bytewax"
    if options.process == 0:
        home.mkdir()
        init_db_dir(home, len(options.addresses))
    options.meet()
    cli_main(
        flow,
        process_id=options.process,
        addresses=options.addresses,
        epoch_interval=timedelta(seconds=options.commit_seconds),
        recovery_config=RecoveryConfig(home),
    )


PRODUCER = {"linger.ms": "20", "acks": "all", "queue.buffering.max.messages": "1000000"}


def read(flow: Any, name: str, topic: str, options: common.Options) -> Any:
    """The rows of a topic."""
    source = kop.input(name, flow, brokers=[options.bootstrap], topics=[topic], tail=options.tail, batch_size=10_000)
    mark = options.first_record()
    seen = False

    def decode(message: Any) -> Row:
        nonlocal seen
        if not seen:
            seen = True
            mark()
        row: Row = orjson.loads(message.value)
        return row

    return op.map(f"{name}_json", source.oks, decode)


def clock() -> Any:
    return win.EventClock(
        lambda row: datetime.fromtimestamp(row["at"] / 1000, UTC),
        wait_for_system_duration=timedelta(milliseconds=DELAY_MS),
    )


def start_of(window: int) -> int:
    """Of a tumbling window, by its number."""
    return EPOCH_MS + window * WINDOW_MS


def q1(flow: Any, options: common.Options) -> Any:
    return op.map("price", read(flow, "bids", BID, options), common.in_dollars)


def q2(flow: Any, options: common.Options) -> Any:
    return op.map("cut", op.filter("some", read(flow, "bids", BID, options), common.is_chosen), common.chosen)


def q5(flow: Any, options: common.Options) -> Any:
    windows = win.TumblingWindower(length=WINDOW, align_to=EPOCH)
    bids = read(flow, "bids", BID, options)
    counted = win.count_window("count", bids, clock(), windows, lambda bid: str(bid["auction"]))
    return op.map(
        "row",
        counted.down,
        lambda found: {"auction": int(found[0]), "start": start_of(found[1][0]), "bids": found[1][1]},
    )


def q8(flow: Any, options: common.Options) -> Any:
    persons = op.key_on("by_person", read(flow, "persons", PERSON, options), lambda person: str(person["person"]))
    auctions = op.key_on("by_seller", read(flow, "auctions", AUCTION, options), lambda auction: str(auction["seller"]))
    windows = win.TumblingWindower(length=WINDOW, align_to=EPOCH)
    joined = win.join_window("join", clock(), windows, persons, auctions, insert_mode="product", emit_mode="final")
    pairs = op.filter("both", joined.down, lambda found: None not in found[1][1])
    return op.map(
        "row",
        pairs,
        lambda found: {
            "person": found[1][1][0]["person"],
            "name": found[1][1][0]["name"],
            "auction": found[1][1][1]["auction"],
            "start": start_of(found[1][0]),
        },
    )


def q11(flow: Any, options: common.Options) -> Any:
    bids = op.key_on("by_bidder", read(flow, "bids", BID_BY_BIDDER, options), lambda bid: str(bid["bidder"]))
    folded = win.fold_window(
        "sessions",
        bids,
        clock(),
        win.SessionWindower(gap=timedelta(milliseconds=common.GAP_MS)),
        builder=lambda: None,
        folder=lambda found, bid: merged(found, (bid["at"], bid["at"], 1)),
        merger=merged,
        ordered=False,
    )
    return op.map(
        "row",
        folded.down,
        lambda found: {
            "bidder": int(found[0]),
            "start": found[1][1][0],
            "last": found[1][1][1],
            "bids": found[1][1][2],
        },
    )


def merged(one: Any, other: Any) -> Any:
    """Start, last and number of two parts of a session; None has no bid yet."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1]), one[2] + other[2]


def q13(flow: Any, options: common.Options) -> Any:
    side = options.side
    return op.map("enrich", read(flow, "bids", BID, options), lambda bid: common.enriched(bid, side))


def q18(flow: Any, options: common.Options) -> Any:
    def last(state: Any, bid: Row) -> tuple[Any, Row | None]:
        return ((bid["at"], bid["price"]), common.last_bid(bid)) if common.newer(bid, state) else (state, None)

    bids = read(flow, "bids", BID_BY_BIDDER, options)
    keyed = op.key_on("by_both", bids, lambda bid: f"{bid['auction']}-{bid['bidder']}")
    changes = op.stateful_map("last", keyed, last)
    return op.map("row", op.filter("changed", changes, lambda found: found[1] is not None), lambda found: found[1])


QUERIES = {"q1": q1, "q2": q2, "q5": q5, "q8": q8, "q11": q11, "q13": q13, "q18": q18}

if __name__ == "__main__":
    main()
