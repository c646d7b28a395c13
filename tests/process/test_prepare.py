"""What a job needs before it runs, on a real log: what is missing, lost or taken is told, and waited for or refused."""

import re

import msgspec
import pytest

from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.internal import COMMITS
from mainstem.client.progress import Marker
from mainstem.client.topics import delete, ensure_internal_topics, ensure_topic, list_topics
from mainstem.core import SystemClock
from mainstem.process.another_version import start_another
from mainstem.process.prepare import InputMissing, _check_sources
from mainstem.process.project import Input
from mainstem.process.project_config import load_job_configs
from mainstem.process.retire import retire
from mainstem.process.versions import Fixed, assignments, write_fixed
from tests.support.jobs import driver_of, put_rows, rows_so_far, run_until
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = pytest.mark.timeout(900)  # a whole Spark beside whatever else the machine does
__all__ = ["drivers", "shop"]  # fixtures


@pytest.mark.spark
def test_input_that_was_deleted_is_told_with_what_to_do(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """It was tried again for ever, in Spark's own words."""
    jobs = """
        @stream(to="SHOP.bereft", key="customer")
        def bereft(orders):
            return orders
    """
    project, data, topic = write_project(tmp_path / "project", shop, jobs), tmp_path / "data", f"{shop}.orders"
    driver = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, topic, ORDERS, [order(1, "ann", 0)], ("customer",))
    run_until(driver, lambda: len(rows_so_far(log_connection, f"{shop}.bereft")) == 1)

    def refused(driver):
        run_until(driver, lambda: "bereft@1" in driver.retries.failed, refused=("bereft@1",))
        failure = driver.retries.failed["bereft@1"]
        assert failure.error == (
            f"records of {topic} are gone that it has not read: deleted with their topic, or by its retention"
        )
        assert failure.needs_a_person
        assert failure.hint == start_another("bereft")

    delete(log_connection, [topic])
    refused(driver)
    drivers.remove(driver)
    driver.stop()
    again = driver_of(spark, project, log_connection, registry_url, data)  # makes the topic anew, without the records
    drivers.append(again)
    again.start()
    failure = again.retries.failed["bereft@1"]
    assert failure.error.startswith(f"topic {topic} was deleted since job bereft has read it")
    again.stop()
    drivers.remove(again)

    delete(log_connection, [f"{shop}.bereft"])  # it was made anew too, without what it had
    last = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(last)
    last.start()
    assert last.retries.failed["bereft@1"].error.startswith(f"topic {shop}.bereft was deleted with what job bereft has")
    assert f"{shop}.bereft" not in list_topics(log_connection)


@pytest.mark.spark
def test_a_setting_of_its_output_that_the_log_refuses_is_named_and_can_be_mended(
    spark, log_connection, registry_url, shop, tmp_path, drivers
):
    """Its driver was started again for ever, and the mended settings would have been those of another version."""
    jobs = """
        @stream(to="SHOP.same", key="customer")
        def same(orders):
            return orders
    """
    wrong = f'[topics."{shop}.same"]\nconfig = {{ "retenshun.ms" = "1" }}\n'
    project, data = write_project(tmp_path / "project", shop, jobs, wrong), tmp_path / "data"
    drivers.append(driver_of(spark, project, log_connection, registry_url, data))
    where = f"{project / 'mainstem.toml'}: [topics.{shop}.same]: "
    drivers[0].start()
    assert re.match(rf"{re.escape(where)}.*retenshun\.ms", drivers[0].waiting["same@1"])
    assert drivers[0].retries.failed["same@1"].needs_a_person
    write_project(project, shop, jobs, wrong.replace("retenshun", "retention"))
    drivers.append(driver_of(spark, project, log_connection, registry_url, data))
    drivers[1].start()
    assert list(drivers[1].running) == ["same@1"]


def test_a_renamed_job_does_not_write_beside_what_it_was(log_connection, registry_url, shop, tmp_path, drivers):
    """The old name ran on from its frozen code, and every row was in the topic twice; the books balanced."""
    jobs = """
        later = topic("SHOP.later")

        @stream(to="SHOP.big")
        def NAME(later):
            return later
    """
    name = f"before{shop}"  # no other job of the log has it
    project, data = write_project(tmp_path / "project", shop, jobs.replace("NAME", name)), tmp_path / "data"
    drivers.append(driver_of(None, project, log_connection, registry_url, data))
    drivers[0].start()
    assert "does not exist yet" in drivers[0].waiting[f"{name}@1"]
    sha = assignments(project, data, SystemClock())[0].sha
    write_fixed(data / "jobs" / f"{name}@1", Fixed(name, "1", sha, {}, f"{shop}.big", 1, 4))
    about = {"output": f"{shop}.big", "inputs": {"later": f"{shop}.later"}}
    write_catalog(log_connection, {f"job:{name}": {"versions": {"1": about}, "current": "1"}})
    ensure_topic(log_connection, f"{shop}.big", 1)

    write_project(project, shop, jobs.replace("NAME", "renamed"))

    def started(data):
        driver = driver_of(None, project, log_connection, registry_url, data)
        drivers.append(driver)
        driver.start()
        return driver

    failure = started(data).retries.failed["renamed@1"]
    assert failure.error == f"topic {shop}.big: job {name}@1 writes it, with its frozen code {sha}"
    assert failure.needs_a_person
    assert f"`mainstem job retire {name} 1` stops that one for good" in failure.hint
    # What another project of the same Kafka writes is refused too.
    failure = started(tmp_path / "other").retries.failed["renamed@1"]
    assert failure.error == f"topic {shop}.big: job {name}@1 writes it, which was started from another data directory"

    retire(log_connection, data, name, "1", project)
    for place in (data, tmp_path / "other"):
        driver = started(place)
        assert driver.retries.failed == {}
        assert "does not exist yet" in driver.waiting["renamed@1"]

    write_catalog(log_connection, {f"topic:{shop}.big": {"producer": f"splice:{shop}.big"}})
    failure = started(tmp_path / "other").retries.failed["renamed@1"]
    assert (failure.error, failure.needs_a_person) == (f"topic {shop}.big: splice {shop}.big writes it", True)


def test_a_schema_that_the_registry_has_lost_is_told_and_not_waited_for(
    log_connection, registry_url, shop, tmp_path, drivers
):
    """`orders` had "no schema yet", and the job stayed idle for ever: with another log, or with `_schemas` deleted."""
    jobs = """
        @stream(to="SHOP.copied")
        def lost(orders):
            return orders
    """
    project, data = write_project(tmp_path / "project", shop, jobs), tmp_path / "data"
    sha = assignments(project, data, SystemClock())[0].sha
    write_fixed(data / "jobs" / "lost@1", Fixed("lost", "1", sha, {"orders": 10**6}, f"{shop}.copied", 1, 4))
    drivers.append(driver_of(None, project, log_connection, registry_url, data))
    drivers[0].start()
    failure = drivers[0].retries.failed["lost@1"]
    assert failure.error == (
        f"topic {shop}.orders: schema id 1000000, in whose shape this version reads it, is not registered"
    )
    assert failure.needs_a_person
    assert start_another("lost") in failure.hint


def test_an_input_that_was_read_and_deleted_is_not_waited_for_after_a_restart(
    log_connection, registry_url, shop, tmp_path, drivers
):
    """It "does not exist yet", without a word of what to do, though the job could not go on with another one."""
    jobs = """
        later = topic("SHOP.later")

        @stream(to="SHOP.copied")
        def bereaved(later):
            return later
    """
    project, data = write_project(tmp_path / "project", shop, jobs), tmp_path / "data"
    sha = assignments(project, data, SystemClock())[0].sha
    write_fixed(data / "jobs" / "bereaved@1", Fixed("bereaved", "1", sha, {}, f"{shop}.copied", 1, 4))

    def start_after(read):
        topic = f"{shop}.later"
        marker = Marker("bereaved", "1", "uuid", 4, {topic: {topic: {0: read}}}, topics={topic: "its id"})
        append(log_connection, COMMITS, [(b"bereaved@1", msgspec.json.encode(marker))])
        drivers.append(driver_of(None, project, log_connection, registry_url, data))
        drivers[-1].start()
        return drivers[-1]

    ensure_internal_topics(log_connection)
    assert start_after(0).waiting == {"bereaved@1": f"topic {shop}.later does not exist yet"}  # nothing was read of it
    failure = start_after(5).retries.failed["bereaved@1"]
    assert failure.error.startswith(f"topic {shop}.later was deleted since job bereaved has read it")
    assert failure.needs_a_person
    assert start_another("bereaved") in failure.hint


def test_a_job_that_reads_another_by_its_name_is_told_where_no_version_writes_what_it_reads(
    log_connection, registry_url, shop, tmp_path, drivers
):
    """It waited for ever for a topic that nobody would make."""
    jobs = """
        later = topic("SHOP.later")

        @stream(to="SHOP.big")
        def big(later):
            return later

        @stream(to="SHOP.small")
        def small(big):
            return big
    """
    project = write_project(tmp_path / "project", shop, jobs, '[jobs.big]\nversion = "2"\n')
    now = load_job_configs(project)
    drivers.append(driver_of(None, project, log_connection, registry_url, tmp_path / "data", settings=now))
    drivers[0].start()
    failure = drivers[0].retries.failed["small@1"]
    assert failure.error == (f"topic {shop}.big is that of big@1, which does not run; big@2 writes {shop}.big.v2")
    assert failure.hint == (
        f'declare topic("{shop}.big.v2") in the code, with partitions = 1 under [topics."{shop}.big.v2"], and read '
        'that, or set version = "1" under [jobs.big]'
    )

    write_fixed(tmp_path / "data" / "jobs" / "big@1", Fixed("big", "1", "c0de", {}, f"{shop}.big", 1, 4))
    drivers.append(driver_of(None, project, log_connection, registry_url, tmp_path / "data", settings=now))
    drivers[1].start()  # that version has yet to make it
    assert drivers[1].retries.failed == {}
    assert "does not exist yet" in drivers[1].waiting["small@1"]


def test_an_empty_table_is_waited_for_only_where_a_database_feeds_it(log_connection, shop):
    """A table that somebody else feeds may stay empty for ever, and so would its job wait."""
    ensure_internal_topics(log_connection)
    table = f"{shop}.customers"
    ensure_topic(log_connection, table, 1)
    inputs, topics = (Input("customers", table, "changelog", None),), list_topics(log_connection)
    _check_sources(log_connection, inputs, topics)
    write_catalog(log_connection, {f"topic:{table}": {"kind": "changelog", "producer": f"source:{shop}"}})
    _check_sources(log_connection, inputs, topics)
    write_catalog(log_connection, {f"source:{shop}": {"type": "postgres", "topics": [table]}})
    with pytest.raises(InputMissing, match="its source has not taken its snapshot"):
        _check_sources(log_connection, inputs, topics)
    append(log_connection, table, [(b"k", b"v")])
    _check_sources(log_connection, inputs, topics)
