"""A project is loaded from its files: the graph is drawn, nothing runs, every mistake is told with its place."""

import sys
from textwrap import dedent

import pytest

from mainstem.core.config import BadSetting
from mainstem.process import BadDeclaration, load_project

JOBS = """
    from mainstem.process import changelog, stream, table, topic

    orders = topic("shop.orders", event_time="ordered_at")
    customers = changelog("shop.customers", key="customer_id")

    @table(to="shop.revenue_hourly", key=["customer_id", "hour"], watermark=("ordered_at", "10 minutes"))
    def revenue_hourly(enriched):
        return enriched

    @stream(to="shop.orders_enriched", key="customer_id")
    def enriched(orders, customers):
        return orders
"""


def project(directory, jobs=JOBS, settings="", **files):
    (directory / "mainstem.toml").write_text(dedent(settings))
    (directory / "jobs.py").write_text(dedent(jobs))
    for name, text in files.items():
        (directory / f"{name}.py").write_text(dedent(text))
    return directory


def test_the_graph_is_drawn_from_parameter_names(tmp_path):
    found = load_project(project(tmp_path))

    assert found.order == ("enriched", "revenue_hourly")
    orders, customers = found.inputs["enriched"]
    assert (orders.topic, orders.kind, orders.job) == ("shop.orders", "stream", None)
    assert (customers.topic, customers.kind) == ("shop.customers", "changelog")
    (enriched,) = found.inputs["revenue_hourly"]
    assert (enriched.topic, enriched.job) == ("shop.orders_enriched", "enriched")
    assert found.downstream("shop.orders") == ("enriched",)
    assert {name: (spec.kind, spec.producer) for name, spec in found.topics.items()} == {
        "shop.orders": ("stream", None),
        "shop.customers": ("changelog", None),
        "shop.orders_enriched": ("stream", "enriched"),
        "shop.revenue_hourly": ("changelog", "revenue_hourly"),
    }


def test_further_topics_of_a_job_are_its_outputs_and_others_read_them(tmp_path):
    jobs = """
        from mainstem.process import changelog, stream, table, topic
        orders = topic("orders")
        refunds = changelog("refunds", key="id")

        @stream(to="totals", key="id")
        def totals(orders, refunds):
            return orders

        @stream(to="paid", key="customer", also=[refunds, topic("odd", event_time="at")])
        def paid(orders):
            return orders, orders, orders
    """
    settings = """
        [topics.orders]
        partitions = 3
        [topics.odd]
        partitions = 1
        config = { "retention.ms" = "1" }
    """
    found = load_project(project(tmp_path, jobs, settings))
    assert found.order == ("paid", "totals")
    assert [(each.topic, each.kind, each.job) for each in found.inputs["totals"]] == [
        ("orders", "stream", None), ("refunds", "changelog", "paid"),
    ]  # fmt: skip
    assert {name: (spec.kind, spec.key, spec.partitions, spec.producer) for name, spec in found.topics.items()} == {
        "orders": ("stream", (), 3, None),
        "paid": ("stream", ("customer",), 3, "paid"),
        "refunds": ("changelog", ("id",), 3, "paid"),
        "odd": ("stream", (), 1, "paid"),
        "totals": ("stream", ("id",), 3, "totals"),
    }
    assert (found.topics["odd"].event_time, found.topics["odd"].config) == ("at", {"retention.ms": "1"})


def test_a_table_with_its_history_is_made_to_keep_it(tmp_path):
    jobs = """
        from mainstem.process import changelog, stream, topic
        orders = topic("orders")
        prices = changelog("prices", key="product", history="since")

        @stream(to="priced")
        def priced(orders, prices):
            return orders
    """
    found = load_project(project(tmp_path, jobs, '[topics.prices]\nconfig = { "retention.ms" = "7" }\n'))
    assert [each.history for each in found.inputs["priced"]] == [None, "since"]
    prices = found.topics["prices"]
    assert (prices.kind, prices.config["cleanup.policy"], prices.config["retention.ms"]) == ("changelog", "delete", "7")


def test_a_table_that_is_read_as_of_now_as_well_is_made_to_keep_its_history(tmp_path):
    """Of the two declarations the last one counted, and the topic was compacted."""
    jobs = dedent("""
        from mainstem.process import as_of, changelog, stream, topic
        orders = topic("orders", event_time="at")
        prices_then = changelog("prices", key="product", history="since")
        prices = changelog("prices", key="product")

        @stream(to="priced")
        def priced(orders, prices): return orders

        @stream(to="priced_then")
        def priced_then(orders, prices_then): return orders
    """)
    found = load_project(project(tmp_path, jobs))
    assert found.topics["prices"].config["cleanup.policy"] == "delete"


def test_settings_say_how_topics_and_jobs_are_made(tmp_path):
    settings = """
        [project]
        name = "shop"
        [topics."shop.orders"]
        partitions = 3
        schema = "orders.avsc"
        config = {"retention.ms" = "-1"}
        [topics.weather]
        event_time = "time_hour"
        [jobs.enriched]
        every = "5 seconds"
        spark = {"spark.sql.shuffle.partitions" = "8"}
        [sources.fleet]
        belongs = "to another room"
    """
    (tmp_path / "orders.avsc").write_text("{}")
    found = load_project(project(tmp_path, settings=settings))

    assert found.name == "shop"
    assert found.topics["shop.orders"].partitions == 3
    assert found.topics["shop.orders"].config == {"retention.ms": "-1"}
    assert found.topics["shop.orders"].schema_file == tmp_path / "orders.avsc"
    assert found.topics["shop.orders_enriched"].partitions == 3  # as many as its first input
    assert found.topics["shop.revenue_hourly"].partitions == 3
    assert found.topics["weather"].event_time == "time_hour"  # a topic that no job reads
    assert found.job_config("enriched").every == "5 seconds"
    assert found.job_config("revenue_hourly").every == "1 second"


def test_jobs_may_be_spread_over_several_files_that_import_each_other(tmp_path):
    settings = '[project]\njobs = ["jobs.py", "more.py"]\n'
    more = """
        from mainstem.process import stream
        from inputs import clicks

        @stream(to="clicks.clean")
        def clean(clicks):
            return clicks
    """
    inputs = 'from mainstem.process import topic\nclicks = topic("clicks")\n'
    found = load_project(project(tmp_path, settings=settings, more=more, inputs=inputs))
    assert set(found.jobs) == {"enriched", "revenue_hourly", "clean"}


def test_a_project_loaded_again_sees_the_edit_and_two_projects_do_not_mix(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    helper = "LIMIT = 1\n"
    jobs = 'from helper import LIMIT\nfrom mainstem.process import stream, topic\na = topic("a")\n@stream(to="b")\ndef job(a):\n    return LIMIT\n'
    assert load_project(project(first, jobs, helper=helper)).jobs["job"].function(None) == 1
    assert load_project(project(second, jobs, helper="LIMIT = 2\n")).jobs["job"].function(None) == 2
    (first / "helper.py").write_text("LIMIT = 3\n")
    assert load_project(first).jobs["job"].function(None) == 3


def test_a_file_of_jobs_may_have_the_name_of_one_of_pythons_own_modules(tmp_path):
    """Python's own was replaced by it for all that imported it later, and in a job's worker."""
    import calendar

    found = load_project(project(tmp_path, JOBS, '[project]\njobs = "calendar.py"\n', calendar=JOBS))
    assert set(found.jobs) == {"enriched", "revenue_hourly"}
    assert sys.modules["calendar"] is calendar
    assert all(sys.modules[module.__name__] is module for module in found.modules)  # as whoever pickles them asks for


HEAD = "from mainstem.process import changelog, stream, table, topic\n"


@pytest.mark.parametrize(
    ("jobs", "line", "message"),
    [
        ('orders = topic("orders")\n@stream(to="b")\ndef job(ordres):\n    pass', 3, "parameter 'ordres' is no declared topic"),
        ('a = topic("a")\n@stream(to="b")\ndef x(a): pass\n@stream(to="b")\ndef y(a): pass', 5, "y writes to b, as x does"),
        ('a = topic("a")\n@stream(to="b")\ndef x(a): pass\n@stream(to="c")\ndef x(a): pass', 5, "job x is already declared"),
        ('@stream(to="b")\ndef x(y): pass\n@stream(to="c")\ndef y(x): pass', 2, "the jobs form a cycle: x -> y -> x"),
        ('a = topic("a")\n@stream(to="a")\ndef x(a): pass', 3, "x writes to a, which is declared as an input"),
        ('a = topic("a")\nb = topic("a")\n@stream(to="c")\ndef x(a, b): pass', 4, "reads topic a by two parameters"),
        ('t = changelog("t", key="k")\n@stream(to="b")\ndef x(t): pass', 3, "expected at least one stream"),
        ('a = topic("a")\nb = topic("b")\n@stream(to="c", also=[b])\ndef x(a): pass\n@stream(to="d", also=[b])\ndef y(a): pass', 6, "y writes to b, as x does"),
        ('b = topic("b")\n@stream(to="c", also=[b])\ndef x(b): pass', 3, "the jobs form a cycle: x -> x"),
        ('topic("lonely")', 2, "topic lonely is not assigned to a variable"),
        ('a = topic("a")\n@stream(to="a b")\ndef x(a): pass', 3, "expected a topic name"),
        ('a = topic("a")\n@stream(to="b", key=7)\ndef x(a): pass', 3, "expected the key as a column name"),
        ("a = topic('a'", 2, "'(' was never closed"),
        ("import no_such_module", 2, "import failed: ModuleNotFoundError"),
        ("a = 1\nb = a / 0", 3, "import failed: ZeroDivisionError"),
        ("import sys\nsys.exit(1)", 3, "import failed: SystemExit: 1"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_code_is_told_with_its_file_and_line(tmp_path, jobs, line, message):
    (tmp_path / "mainstem.toml").touch()
    (tmp_path / "jobs.py").write_text(HEAD + jobs + "\n")
    with pytest.raises((BadDeclaration, TypeError)) as caught:
        load_project(tmp_path)
    assert isinstance(caught.value, BadDeclaration), repr(caught.value)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'jobs.py'}:{line}: ")


def test_a_near_miss_is_suggested(tmp_path):
    jobs = HEAD + 'orders = topic("orders")\n@stream(to="b")\ndef job(ordres):\n    pass\n'
    with pytest.raises(BadDeclaration) as caught:
        load_project(project(tmp_path, jobs))
    assert caught.value.hint == "did you mean 'orders'?"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[project]\njobs = 'nothing.py'", "no such file"),
        ("[topics.weather]\nschema = 'nowhere.avsc'", "no such file"),
        ('[topics."shop.orders"]\nkind = "changelog"', "kind = 'changelog', but the code declares 'stream'"),
        ('[topics."shop.orders_enriched"]\nschema = "x.avsc"', "job enriched gives this topic its schema"),
        ('[topics."shop.orders_enriched"]\nkey = "order_id"', "but the code declares ('customer_id',)"),
        ("[jobs.enrched]\nevery = '1 second'", "there is no such job"),
    ],
)
def test_a_wrong_setting_names_the_setting_and_the_file(tmp_path, settings, message):
    with pytest.raises(BadSetting) as caught:
        load_project(project(tmp_path, settings=settings))
    assert message in str(caught.value)
    assert str(tmp_path / "mainstem.toml") in str(caught.value)


def test_a_project_without_the_usual_file_of_jobs_is_told_how_to_say_so(tmp_path):
    (tmp_path / "mainstem.toml").touch()
    with pytest.raises(BadSetting, match=rf"expected jobs in {tmp_path}/jobs\.py, found no such file$") as caught:
        load_project(tmp_path)
    assert "jobs = [] where there are none" in caught.value.hint
