"""What keeps state is found in the plan; what would be kept for ever is refused with the user's line."""

import pytest

from mainstem.process.analysis import ROWS_BETWEEN, Determinism
from tests.support.analyses import check_refused, found

pytestmark = pytest.mark.spark


def test_an_aggregation_of_the_table_itself_is_no_state(spark, tmp_path):
    it = found(spark, tmp_path, """
        @stream(to="enriched")
        def job(orders, customers):
            regions = customers.groupBy("id").agg(F.max("region").alias("region"))
            return orders.join(regions.withColumnRenamed("id", "customer"), "customer")
    """)  # fmt: skip
    assert it.stateful is None


@pytest.mark.parametrize(
    ("grouping", "horizon"),
    [
        ('F.window("at", "2 hours")', 7_200_000),
        ('F.window("at", "1 hour", "15 minutes")', 3_600_000),
        ('F.session_window("at", "6 hours")', 6 * 3_600_000),
    ],
)
def test_windows_keep_state_and_their_length_is_guessed(spark, tmp_path, grouping, horizon):
    it = found(spark, tmp_path, f"""
        @table(to="totals", key=["customer", "since"], watermark=("at", "10 minutes"))
        def job(orders):
            totals = orders.groupBy("customer", {grouping}.alias("w")).agg(F.sum("cents").alias("cents"))
            return totals.select("customer", F.col("w.start").alias("since"), "cents")
    """)  # fmt: skip
    assert it.stateful == "an aggregation"
    assert it.determinism is Determinism.BATCH
    assert "too late" in it.reason
    assert it.horizon == horizon


def test_totals_of_a_key_may_be_kept_for_ever_and_told_at_each_change(spark, tmp_path):
    it = found(spark, tmp_path, """
        @table(to="totals", key="customer", watermark=("at", "10 minutes"), emit="changes")
        def job(orders):
            return orders.groupBy("customer").agg(F.sum("cents").alias("cents"))
    """)  # fmt: skip
    assert it.stateful == "an aggregation"
    assert it.reason == f"an aggregation: {ROWS_BETWEEN}"  # that rows come too late was said, and none does


@pytest.mark.parametrize(
    ("result", "stateful"),
    [
        ('orders.dropDuplicates(["id", "at"])', "dropDuplicates"),
        ('orders.withColumnRenamed("at", "day").dropDuplicates(["day"])', "dropDuplicates"),
        ('orders.dropDuplicatesWithinWatermark(["id"])', "dropDuplicatesWithinWatermark"),
        ('orders.groupBy("customer", "at").agg(F.max("id").alias("id"))', "an aggregation"),
    ],
)
def test_state_that_the_watermark_removes_is_no_matter(spark, tmp_path, result, stateful):
    it = found(spark, tmp_path, f"""
        @stream(to="once", watermark=("at", "10 minutes"))
        def job(orders):
            return {result}
    """)  # fmt: skip
    assert it.stateful == stateful


TOTALS = '    return orders.groupBy("customer", F.window("at", "1 hour")).count()'


@pytest.mark.parametrize(
    ("jobs", "line", "message"),
    [
        (f'@table(to="t", key="customer")\ndef job(orders):\n{TOTALS}', 1, "an aggregation keeps state, and without a watermark"),
        (f'@table(to="t", key="customer", watermark=("when", "1 hour"))\ndef job(orders):\n{TOTALS}', 1,
         "the watermark's column 'when' is not among those of orders"),
        (f'@table(to="t", key="customer", watermark=("note", "1 hour"))\ndef job(orders):\n{TOTALS}', 1, "'note' is string"),
        (f'@table(to="t", key="customer", watermark=("at", "soon"))\ndef job(orders):\n{TOTALS}', 1, "found 'soon'"),
        (('@table(to="t", key="customer", watermark=("at", "1 hour"))\ndef job(orders):\n'
         '    return orders.dropDuplicates(["id", "at"]).groupBy("customer", F.window("at", "1 hour")).count()'),
         1, "keeps state in an aggregation and in dropDuplicates"),
        (('@table(to="t", key="customer", watermark=("at", "1 hour"))\ndef job(orders, customers):\n'
         '    return orders.join(customers, "id").groupBy("customer", F.window("at", "1 hour")).count()'),
         1, "an aggregation together with a table (customers)"),
        ('@stream(to="t", watermark=("at", "1 hour"))\ndef job(orders):\n    return orders.dropDuplicates(["id"])', 1,
         "dropDuplicates whose columns hold neither 'at' nor a window of it keeps its state for ever"),
        (('@table(to="t", key="customer", watermark=("at", "1 hour"))\ndef job(orders):\n'
         '    return orders.groupBy("customer").count()'), 1, "an aggregation whose columns hold neither 'at' nor a window"),
        (('@table(to="t", key=["customer", "start"], watermark=("at", "1 hour"))\ndef job(orders):\n'
         '    return orders.groupBy("customer", F.window("at", "1 hour").start.alias("start")).count()'),
         1, "an aggregation whose columns hold neither 'at' nor a window"),
        ('@stream(to="t", watermark=("at", "1 hour"))\ndef job(orders):\n    return orders.dropDuplicates()', 1,
         "dropDuplicates compares all columns, and no two rows have the same _position"),
        ('@stream(to="t", watermark=("at", "1 hour"))\ndef job(orders):\n    return orders.distinct()', 1,
         "compares all columns, and no two rows have the same _position"),
        ('@stream(to="t")\ndef job(orders, refunds):\n    return orders.join(refunds, "id")', 1,
         "a join of two streams keeps state, and without a watermark"),
        ('@stream(to="t")\ndef job(orders):\n    return orders.orderBy("id")', 1, "a sort over a stream never ends"),
        (('@stream(to="t", also=[topic("u")], watermark=("at", "1 hour"))\ndef job(orders):\n'
          '    once = orders.dropDuplicatesWithinWatermark(["id"])\n    return once, once'), 1,
         "keeps state in dropDuplicatesWithinWatermark, and writes 2 topics"),
    ],
)  # fmt: skip
def test_state_that_cannot_be_kept_is_told_with_the_line(spark, tmp_path, jobs, line, message):
    check_refused(spark, tmp_path, jobs, line, message)


@pytest.mark.parametrize(("time", "by_the_clock"), [("None", False), ("EventTime", False), ("ProcessingTime", True)])
def test_a_state_function_by_the_clock_may_have_something_to_do_at_any_time(spark, tmp_path, time, by_the_clock):
    it = found(spark, tmp_path, f"""
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor

        class Nothing(StatefulProcessor):
            def init(self, handle):
                pass

            def handleInputRows(self, key, rows, timers):
                return iter([])

            def close(self):
                pass

        @stream(to="t", watermark=("at", "1 hour"))
        def job(orders):
            return orders.groupBy("customer").transformWithState(Nothing(), "id long", "Append", "{time}")
    """)  # fmt: skip
    assert it.by_the_clock is by_the_clock
