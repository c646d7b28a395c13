"""The queries on Pathway, whose engine is written in Rust and runs in one process with two threads.

A window of q5 is written once, when it is over. Sessions and last rows are told whenever they change, with the row
before taken back (`diff` -1).
"""

import os
import time
from typing import Any

import pathway as pw

from bench.nexmark.rivals import common
from bench.nexmark.rivals.common import AUCTION, BID, BID_BY_BIDDER, DELAY_MS, PERSON, WINDOW_MS

os.environ.setdefault("PATHWAY_THREADS", "2")


BIDS = pw.schema_from_types(auction=int, bidder=int, price=int, at=int)
PERSONS = pw.schema_from_types(person=int, name=str, at=int)
AUCTIONS = pw.schema_from_types(auction=int, seller=int, at=int)
SIDE = pw.schema_from_types(key=int, value=str)


def main() -> None:
    options = common.options()
    rows = QUERIES[options.query](options)
    pw.io.kafka.write(rows, {"bootstrap.servers": options.bootstrap, "linger.ms": "20"}, options.output, format="json")
    backend = pw.persistence.Backend.filesystem(str(options.state / "pathway"))
    config = pw.persistence.Config(backend, snapshot_interval_ms=int(options.commit_seconds * 1000))
    (options.state / "first-0").write_text(str(time.time()))  # its connectors are no functions that could tell it
    pw.run(persistence_config=config, monitoring_level=pw.MonitoringLevel.NONE)


def read(topic: str, schema: Any, options: common.Options) -> Any:
    settings = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": "6000",
    }
    every = 100 if options.tail else int(options.commit_seconds * 1000)
    return pw.io.kafka.read(settings, topic, schema=schema, format="json", autocommit_duration_ms=every, name=topic)


def q1(options: common.Options) -> Any:
    bids = read(BID, BIDS, options)
    return bids.select(bids.auction, bids.bidder, price=bids.price * 0.908, at=bids.at)


def q2(options: common.Options) -> Any:
    bids = read(BID, BIDS, options)
    return bids.filter(bids.auction % 123 == 0).select(pw.this.auction, pw.this.price)


def q5(options: common.Options) -> Any:
    windows = read(BID, BIDS, options).windowby(
        pw.this.at,
        window=pw.temporal.tumbling(duration=WINDOW_MS, origin=0),
        behavior=pw.temporal.exactly_once_behavior(shift=DELAY_MS),
        instance=pw.this.auction,
    )
    return windows.reduce(auction=pw.this._pw_instance, start=pw.this._pw_window_start, bids=pw.reducers.count())


def q8(options: common.Options) -> Any:
    persons, auctions = read(PERSON, PERSONS, options), read(AUCTION, AUCTIONS, options)
    window = pw.temporal.tumbling(duration=WINDOW_MS, origin=0)
    joined = persons.window_join(auctions, persons.at, auctions.at, window, persons.person == auctions.seller)
    return joined.select(persons.person, persons.name, auctions.auction, start=persons.at // WINDOW_MS * WINDOW_MS)


def q11(options: common.Options) -> Any:
    sessions = read(BID_BY_BIDDER, BIDS, options).windowby(
        pw.this.at, window=pw.temporal.session(max_gap=common.GAP_MS), instance=pw.this.bidder
    )
    return sessions.reduce(
        bidder=pw.this._pw_instance,
        start=pw.this._pw_window_start,
        last=pw.this._pw_window_end,
        bids=pw.reducers.count(),
    )


def q13(options: common.Options) -> Any:
    bids = read(BID, BIDS, options)
    side = pw.debug.table_from_rows(SIDE, list(options.side.items()))
    joined = bids.join(side, bids.auction % 10_000 == side.key)
    return joined.select(bids.auction, bids.bidder, bids.price, bids.at, side.value)


def q18(options: common.Options) -> Any:
    grouped = read(BID_BY_BIDDER, BIDS, options).groupby(pw.this.auction, pw.this.bidder)
    last = grouped.reduce(
        pw.this.auction, pw.this.bidder, last=pw.reducers.max(pw.make_tuple(pw.this.at, pw.this.price))
    )
    return last.select(pw.this.auction, pw.this.bidder, price=pw.this.last[1], at=pw.this.last[0])


QUERIES = {"q1": q1, "q2": q2, "q5": q5, "q8": q8, "q11": q11, "q13": q13, "q18": q18}

if __name__ == "__main__":
    main()
