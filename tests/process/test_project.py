"""A project is loaded from its files: the graph is drawn, nothing runs, every mistake is told with its place."""

import importlib
import subprocess
import sys
from textwrap import dedent

import pytest

from mainstem.core.config import BadSetting
from mainstem.process import BadDeclaration, load_project
from mainstem.process.project import load_job_configs

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


def test_the_environment_wins_over_the_file(tmp_path):
    found = load_project(project(tmp_path), environment={"MAINSTEM_JOBS__ENRICHED__EVERY": "3 seconds"})
    assert found.job_config("enriched").every == "3 seconds"


def test_settings_of_jobs_are_read_without_the_code(tmp_path):
    """A driver that is started again has its own code; what somebody is typing meanwhile must not stop it."""
    (tmp_path / "mainstem.toml").write_text('[jobs.enriched]\nevery = "5 seconds"\n')
    (tmp_path / "jobs.py").write_text("def enriched(")
    assert load_job_configs(tmp_path)["enriched"].every == "5 seconds"
    (tmp_path / "mainstem.toml").write_text("[jobs.enriched]\nevry = 5\n")
    with pytest.raises(BadSetting, match=r"mainstem.toml: \[jobs.enriched\]: .*evry"):
        load_job_configs(tmp_path)


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


IMPORT = "from mainstem.process import stream, topic\n"
TOPIC = IMPORT + 'clicks = topic("clicks")\n'
CLEAN = '@stream(to="clicks.clean")\ndef clean(clicks):\n    return clicks\n'
PAGES = '@stream(to="pages")\ndef pages(clean):\n    return clean\n'


def files(directory, settings="", **texts):
    """A project of files by their paths, with `__` for each slash."""
    for name, text in {"mainstem.toml": settings, **{f"{name}.py": text for name, text in texts.items()}}.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


@pytest.mark.parametrize("order", ['"a.py", "b.py"', '"b.py", "a.py"'])
def test_a_file_of_jobs_that_another_one_has_imported_is_not_run_again(tmp_path, order):
    """Its job was said to be declared twice, at one and the same line."""
    a = f"from b import clean\n{IMPORT}{PAGES}"
    found = load_project(files(tmp_path, f"[project]\njobs = [{order}]\n", a=a, b=TOPIC + CLEAN))
    assert found.order == ("clean", "pages")


def test_files_of_jobs_may_have_one_name_in_two_directories(tmp_path):
    """The first one's topics were said to be assigned to no variable."""
    settings = '[project]\njobs = ["one/jobs.py", "two/jobs.py"]\n'
    found = load_project(files(tmp_path, settings, one__jobs=TOPIC + CLEAN, two__jobs=IMPORT + PAGES))
    assert found.order == ("clean", "pages")
    assert len(found.modules) == 2


def test_a_file_of_jobs_in_a_package_may_import_relative_to_it(tmp_path):
    jobs = f"from .inputs import clicks\nfrom ..more import LIMIT\n{IMPORT}{CLEAN}"
    texts = {"flow__more": "LIMIT = 1\n", "flow__deep__inputs": TOPIC, "flow__deep__jobs": jobs}
    directory = files(tmp_path, '[project]\njobs = "flow/deep/jobs.py"\n', **texts)
    for package in ("flow", "flow/deep"):
        (directory / package / "__init__.py").touch()
    assert {module.__name__ for module in load_project(directory).modules} == {
        "flow", "flow.more", "flow.deep", "flow.deep.inputs", "flow.deep.jobs",
    }  # fmt: skip


def test_a_package_may_import_its_file_of_jobs(tmp_path):
    """It was told that the name cannot be imported, from a file that had not been run yet."""
    directory = files(tmp_path, '[project]\njobs = "shown/jobs.py"\n', shown__jobs=TOPIC + CLEAN)
    (directory / "shown" / "__init__.py").write_text("from .jobs import clean\n")
    found = load_project(directory)
    assert {module.__name__ for module in found.modules} == {"shown", "shown.jobs"}


def test_a_packages_own_file_may_be_one_of_jobs(tmp_path):
    """It was run twice, and its topic said to be assigned to no variable."""
    directory = files(tmp_path, '[project]\njobs = "whole/__init__.py"\n', whole__other="")
    (directory / "whole" / "__init__.py").write_text(TOPIC + CLEAN)
    assert load_project(directory).order == ("clean",)


def test_a_file_of_jobs_is_an_attribute_of_its_package(tmp_path):
    texts = {"flow__a": TOPIC + CLEAN, "flow__b": f"import flow.a\n{IMPORT}flow.a.clean\n{PAGES}"}
    directory = files(tmp_path, '[project]\njobs = ["flow/a.py", "flow/b.py"]\n', **texts)
    (directory / "flow" / "__init__.py").touch()
    found = load_project(directory)
    assert found.order == ("clean", "pages")


@pytest.mark.parametrize("place", ["", "src__"])
@pytest.mark.parametrize("linked", [False, True])
def test_files_of_jobs_below_any_directory_that_is_imported_from_may_import_each_other(
    tmp_path, monkeypatch, place, linked
):
    """The first was run again under its other name, and its topic said to be assigned to no variable. What was found
    through a link was not seen at all.
    """
    texts = {"kinds_of_test__a": f"from .b import LIMIT\n{TOPIC}{CLEAN}", "kinds_of_test__b": "LIMIT = 1\n"}
    texts["kinds_of_test__c"] = f"from kinds_of_test.a import clicks\n{IMPORT}{PAGES}"
    names = [f"{place.replace('__', '/')}kinds_of_test/{name}.py" for name in "ac"]
    settings = f"[project]\njobs = {names}\n"
    directory = files(tmp_path / "p", settings, **{f"{place}{name}": text for name, text in texts.items()})
    (tmp_path / "link").symlink_to(directory)
    monkeypatch.syspath_prepend(str((tmp_path / "link" if linked else directory) / place.strip("_")))
    assert {module.__name__ for module in load_project(directory).modules} == {
        "kinds_of_test.a", "kinds_of_test.b", "kinds_of_test.c",
    }  # fmt: skip


def test_a_file_of_jobs_in_a_directory_of_the_path_is_imported_from_there(tmp_path, monkeypatch):
    texts = {"src__first_of_test": TOPIC + CLEAN, "src__then": f"from first_of_test import clicks\n{IMPORT}{PAGES}"}
    directory = files(tmp_path, '[project]\njobs = ["src/first_of_test.py", "src/then.py"]\n', **texts)
    monkeypatch.syspath_prepend(str(directory / "src"))
    assert load_project(directory).order == ("clean", "pages")


def test_links_to_files_elsewhere_are_of_the_project(tmp_path):
    """Their topics were said to be assigned to no variable."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").mkdir()
    for name, text in {"shared_inputs": TOPIC, "shared_jobs": f"from inputs import clicks\n{IMPORT}{CLEAN}"}.items():
        (tmp_path / "elsewhere" / f"{name}.py").write_text(text)
        (tmp_path / "project" / f"{name[7:]}.py").symlink_to(f"../elsewhere/{name}.py")
    (tmp_path / "project" / "mainstem.toml").touch()
    found = load_project(tmp_path / "project")
    assert {module.__name__ for module in found.modules} == {"jobs", "inputs"}


def test_a_file_of_jobs_outside_of_the_project_is_refused(tmp_path):
    (tmp_path / "jobs.py").write_text(TOPIC + CLEAN)
    with pytest.raises(BadSetting, match=r"expected jobs in the project's directory, found .*jobs\.py"):
        load_project(files(tmp_path / "project", '[project]\njobs = "../jobs.py"\n'))


def test_what_a_test_has_imported_of_a_project_is_imported_anew_and_comes_back(tmp_path, monkeypatch):
    texts = {"seen_jobs": f"from seen_inputs import clicks\n{IMPORT}{CLEAN}", "seen_inputs": TOPIC, "seen_test": ""}
    directory = files(tmp_path, '[project]\njobs = "seen_jobs.py"\n', **texts)
    monkeypatch.syspath_prepend(str(directory))
    test, before = importlib.import_module("seen_test"), importlib.import_module("seen_jobs")
    assert load_project(directory).order == ("clean",)
    assert sys.modules["seen_jobs"] is not before
    assert sys.modules.pop("seen_test") is test


def test_a_file_of_jobs_may_have_the_name_of_a_package_that_is_installed(tmp_path):
    """It took that one's place, for all that imported it later."""
    import click

    found = load_project(files(tmp_path, '[project]\njobs = "click.py"\n', click=TOPIC + CLEAN))
    assert found.order == ("clean",)
    assert sys.modules["click"] is click


def test_an_environment_within_a_project_is_none_of_it(tmp_path, monkeypatch):
    """It was imported anew with the project, and numpy cannot be imported twice."""
    packages = tmp_path / "venv" / "lib"
    jobs = f"import once_of_test\n{TOPIC}{CLEAN}"
    files(tmp_path, jobs=jobs, venv__lib__once_of_test="")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.syspath_prepend(str(packages))
    (first,) = load_project(tmp_path).modules
    installed = sys.modules["once_of_test"]
    (second,) = load_project(tmp_path).modules
    assert first.__name__ == second.__name__ == "jobs"
    assert sys.modules.pop("once_of_test") is installed


def test_what_is_installed_below_a_project_is_none_of_it(tmp_path, monkeypatch):
    """`pip install --user` puts it there, where the project is the home directory: no project could be loaded."""
    packages = tmp_path / ".local" / "lib"
    files(tmp_path, jobs=f"import once_of_test\n{TOPIC}{CLEAN}")
    (packages / "once-1.0.dist-info").mkdir(parents=True)
    (packages / "once_of_test.py").touch()
    monkeypatch.syspath_prepend(str(packages))
    assert [module.__name__ for module in load_project(tmp_path).modules] == ["jobs"]
    installed = sys.modules["once_of_test"]
    load_project(tmp_path)
    assert sys.modules.pop("once_of_test") is installed


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
        ("[project]\njob = 'jobs.py'", "unknown field `job`"),
        ("[project]\njobs = 'nothing.py'", "no such file"),
        ("[topics.weather]\npartitons = 2", "unknown field `partitons`"),
        ("[topics.weather]\nschema = 'nowhere.avsc'", "no such file"),
        ('[topics."shop.orders"]\nkind = "changelog"', "kind = 'changelog', but the code declares 'stream'"),
        ('[topics."shop.orders_enriched"]\nschema = "x.avsc"', "job enriched gives this topic its schema"),
        ('[topics."shop.orders_enriched"]\nkey = "order_id"', "but the code declares ('customer_id',)"),
        ("[jobs.enrched]\nevery = '1 second'", "there is no such job"),
        ("[jobs.enriched]\nmax_offsets = 1", "[jobs.enriched]: Object contains unknown field `max_offsets`"),
        (
            "[jobs.enriched]\nversion = '2/3'",
            "[jobs.enriched]: expected letters, digits, '.', '_' and '-' in a version",
        ),
        ("[jobs.enriched]\nevery = 'often'", "[jobs.enriched]: expected a number and a unit"),
        ("[[topics]]", "topics: expected tables"),
        ("[topics.'a b']", "[topics.a b]: expected letters"),
        ("[topics.a]\npartitions = -1", "[topics.a]: partitions: expected `int` >= 0, found -1"),
        ("not toml", "not valid TOML"),
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


def test_a_directory_without_settings_is_no_project(tmp_path):
    with pytest.raises(BadSetting, match="no such file"):
        load_project(tmp_path)


def test_spark_outside_of_a_function_is_refused_with_what_to_write(tmp_path):
    """Also where somebody else in this process runs Spark: so in a process of its own."""
    text = 'from pyspark.sql import functions as F\n@F.udf("string")\ndef upper(x):\n    return x\n'
    project(tmp_path, text)
    code = f"from mainstem.process import load_project\nload_project({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    told = done.stderr.splitlines()[-1]
    assert f"{tmp_path / 'jobs.py'}:2: import failed: PySparkRuntimeError" in told, told
