"""Declaring collects and checks; it never runs anything."""

from pathlib import Path

import pytest

from mainstem.process.declare import BadDeclaration, Watermark, changelog, collecting, stream, table, topic


def line_of(needle: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if needle in line and "line_of" not in line)


def test_declarations_are_collected_in_order_and_functions_stay_what_they_are():
    with collecting() as declared:
        orders = topic("shop.orders", event_time="ordered_at")
        customers = changelog("shop.customers", key="customer_id")

        @stream(to="shop.enriched", key="customer_id")
        def enriched(orders, customers):
            """Orders with their customer.

            More words.
            """
            return [orders, customers]

        @table(to="shop.revenue", key=["customer_id", "hour"], watermark=("ordered_at", "10 minutes"))
        def revenue(enriched):
            return enriched

    assert enriched(1, 2) == [1, 2]
    assert declared.topics == [orders, customers]
    assert (orders.kind, orders.key, customers.kind, customers.key) == ("stream", (), "changelog", ("customer_id",))
    first, second = declared.jobs
    assert (first.name, first.parameters, first.to, first.kind, first.key) == (
        "enriched", ("orders", "customers"), "shop.enriched", "stream", ("customer_id",),
    )  # fmt: skip
    assert first.doc == "Orders with their customer."
    assert second.watermark == Watermark("ordered_at", "10 minutes")
    assert second.key == ("customer_id", "hour")


def test_a_job_may_write_further_topics():
    with collecting() as declared:
        refunds = changelog("shop.refunds", key="id")

        @stream(to="shop.paid", key="customer", event_time="at", also=[refunds])
        def paid(orders):
            return orders, orders

    (job,) = declared.jobs
    assert job.topics == ("shop.paid", "shop.refunds")
    first, second = job.outputs
    assert (first.kind, first.key, first.event_time) == ("stream", ("customer",), "at")
    assert (second.kind, second.key, second.event_time) == ("changelog", ("id",), None)


@pytest.mark.parametrize(
    ("also", "message"),
    [
        ("shop.refunds", "expected also=\\[…\\] as a list of declared topics, found 'shop.refunds'"),
        (["shop.refunds"], "as a list of declared topics"),
        ([topic("b")], "topic b is named twice"),
        ([topic("c"), topic("c")], "topic c is named twice"),
        ([topic("c", schema="c.avsc")], "topic c: schema: the job gives it its schema"),
    ],
)
def test_further_topics_that_make_no_sense_are_refused(also, message):
    with pytest.raises(BadDeclaration, match=message):
        stream(to="b", also=also)


def test_a_declaration_knows_its_file_and_line():
    with collecting() as declared:
        here = topic("a.topic")  # the line of the topic

        @stream(to="b")  # the line of the job
        def job(here):
            return here

    assert (here.location.file, here.location.line) == (__file__, line_of("# the line of the topic"))
    assert (declared.jobs[0].location.file, declared.jobs[0].location.line) == (
        __file__,
        line_of("# the line of the job"),
    )


def test_outside_of_a_load_the_same_code_imports_and_declares_nothing():
    @stream(to="b")
    def job(rows):
        return rows

    assert job("ten rows") == "ten rows"
    with collecting() as declared:
        pass
    assert declared.jobs == []


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: topic("with space"), "expected a topic name"),
        (lambda: topic(""), "expected a topic name"),
        (lambda: topic("x" * 250), "expected a topic name"),
        (lambda: topic("__mainstem.catalog"), "Mainstem's own"),
        (lambda: changelog("t", key=["a", "a"]), "names a column twice"),
        (lambda: changelog("t", key=[1]), "expected the key as a column name"),
        (lambda: table(to="t", key=[]), "expected a key, found none"),
        (lambda: table(to="t", key="a", watermark="10 minutes"), "expected watermark="),
        (lambda: table(to="t", key="a", watermark=("at",)), "expected watermark="),
        (lambda: table(to="t", key="a", emit="sometimes"), "emit is 'final' or 'changes'"),
        (lambda: stream(to="t", latency="soon"), "expected latency='batch' or 'realtime', found 'soon'"),
        (lambda: stream(to="t", latency="realtime", also=[topic("u")]), "without state, found also=…"),
        (
            lambda: stream(to="t", latency="realtime", watermark=("at", "1 day"), state=changelog("u", key="a")),
            "found state=… and watermark=…",
        ),
        (lambda: stream(to="t")(lambda *many: many), "has no name that could be a topic's"),
        (lambda: stream(to="t")(lambda: None), "at least one input"),
        (lambda: stream(to="t")(int), "expected a function"),
    ],
)
def test_what_cannot_mean_anything_is_refused_with_its_place(declare, message):
    with collecting(), pytest.raises((BadDeclaration, AttributeError)) as caught:
        declare()
    assert isinstance(caught.value, BadDeclaration)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")
