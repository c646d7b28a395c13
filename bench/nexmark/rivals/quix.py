"""The queries on Quix Streams, whose windows are closed by the time of the partition, as its documentation has them."""

from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows.aggregations import Count, Max, Min

from bench.nexmark.rivals import common
from bench.nexmark.rivals.common import BID, BID_BY_BIDDER, DELAY_MS, WINDOW_MS, Row


def main() -> None:
    options = common.options()
    app = Application(
        broker_address=options.bootstrap,
        consumer_group=options.group,
        auto_offset_reset="earliest",
        commit_interval=options.commit_seconds,
        processing_guarantee="exactly-once" if options.exactly_once else "at-least-once",
        state_dir=options.state / f"quix-{options.process}",
        loglevel="WARNING",
        producer_extra_config={"linger.ms": 20, "acks": "all"},
    )
    topic = BID_BY_BIDDER if options.query in ("q11", "q18") else BID
    stream = app.dataframe(app.topic(topic, key_deserializer="str", value_deserializer="json"))
    stream = QUERIES[options.query](app, stream, options)
    stream.to_topic(app.topic(options.output, key_serializer="str", value_serializer="json"))
    options.meet()
    app.run()


def marked(stream: Any, options: common.Options) -> Any:
    """Tells when the first record was there, and costs the others a function that does nothing."""
    mark = options.first_record()
    seen = False

    def first(value: Row) -> Row:
        nonlocal seen
        if not seen:
            seen = True
            mark()
        return value

    return stream.apply(first)


def q1(app: Any, bids: Any, options: common.Options) -> Any:
    return marked(bids, options).apply(common.in_dollars)


def q2(app: Any, bids: Any, options: common.Options) -> Any:
    return marked(bids, options).filter(common.is_chosen).apply(common.chosen)


def q5(app: Any, bids: Any, options: common.Options) -> Any:
    windows = marked(bids, options).tumbling_window(WINDOW_MS, grace_ms=DELAY_MS)
    return (
        windows.count()
        .final(closing_strategy="partition")
        .apply(
            lambda found, key, *_: {"auction": int(key), "start": found["start"], "bids": found["value"]}, metadata=True
        )
    )


def q8(app: Any, bids: Any, options: common.Options) -> Any:
    persons = app.dataframe(app.topic(common.PERSON, key_deserializer="str", value_deserializer="json"))
    auctions = app.dataframe(app.topic(common.AUCTION, key_deserializer="str", value_deserializer="json"))
    joined = marked(persons, options).join_interval(
        auctions,
        on_merge=lambda person, auction: (person, auction),
        grace_ms=WINDOW_MS + DELAY_MS,
        backward_ms=WINDOW_MS,
        forward_ms=WINDOW_MS,
    )
    same = joined.filter(lambda pair: pair[0]["at"] // WINDOW_MS == pair[1]["at"] // WINDOW_MS)
    return same.apply(
        lambda pair: {
            "person": pair[0]["person"],
            "name": pair[0]["name"],
            "auction": pair[1]["auction"],
            "start": pair[0]["at"] // WINDOW_MS * WINDOW_MS,
        }
    )


def q11(app: Any, bids: Any, options: common.Options) -> Any:
    sessions = marked(bids, options).session_window(common.GAP_MS, grace_ms=DELAY_MS)
    return (
        sessions.agg(start_at=Min("at"), last=Max("at"), bids=Count())
        .final(closing_strategy="partition")
        .apply(
            lambda found, key, *_: {
                "bidder": int(key),
                "start": found["start_at"],
                "last": found["last"],
                "bids": found["bids"],
            },
            metadata=True,
        )
    )


def q13(app: Any, bids: Any, options: common.Options) -> Any:
    side = options.side
    return marked(bids, options).apply(lambda bid: common.enriched(bid, side))


def q18(app: Any, bids: Any, options: common.Options) -> Any:
    def last(bid: Row, state: Any) -> Row | None:
        key = str(bid["auction"])
        if not common.newer(bid, state.get(key)):
            return None
        state.set(key, [bid["at"], bid["price"]])
        return common.last_bid(bid)

    return marked(bids, options).apply(last, stateful=True).filter(lambda bid: bid is not None)


QUERIES = {"q1": q1, "q2": q2, "q5": q5, "q8": q8, "q11": q11, "q13": q13, "q18": q18}

if __name__ == "__main__":
    main()
