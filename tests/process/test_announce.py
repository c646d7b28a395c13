"""What the catalog says of a job is what all who start, move and retire its versions have told it."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from mainstem.client.catalog import current_versions, read_catalog
from mainstem.client.internal import CATALOG
from mainstem.client.topics import end_offsets, ensure_internal_topics
from mainstem.process.announce import announce
from mainstem.process.retire import retire
from tests.support.job_specs import spec_of


@pytest.fixture
def job(log_connection, request):
    ensure_internal_topics(log_connection)
    return request.node.name[:60]


def entry_of(connection, job):
    return read_catalog(connection)[f"job:{job}"]


def test_the_catalog_hears_of_an_output_and_of_who_writes_it_once(log_connection, job, tmp_path):
    specs = [spec_of(tmp_path, job, version) for version in "12"]
    announce(log_connection, tmp_path, specs)
    end = end_offsets(log_connection, CATALOG)
    announce(log_connection, tmp_path, specs)
    assert end_offsets(log_connection, CATALOG) == end
    catalog = read_catalog(log_connection)
    assert catalog[f"topic:{job}.v2"] == {"event_time": "at", "subject": f"{job}.v2-value", "producer": f"job:{job}"}
    entry = catalog[f"job:{job}"]
    assert (entry["current"], list(entry["versions"])) == ("1", ["1", "2"])
    assert entry["versions"]["2"] == {
        "code": "c0de2",
        "output": f"{job}.v2",
        "inputs": {"o": "orders", "c": "customers"},
        "tables": ["customers"],
        "determinism": "prefix-deterministic",
        "reason": "",
        "windows_by": "at",
    }


def test_drivers_that_announce_at_once_lose_no_version(log_connection, job, tmp_path):
    """Two that were asked for while nothing ran start at once; they may be of two data directories, too."""
    versions = [str(n) for n in range(1, 6)]
    specs = {version: spec_of(tmp_path / version, job, version) for version in versions}
    with ThreadPoolExecutor(len(versions)) as threads:
        list(threads.map(lambda v: announce(log_connection, tmp_path / v, [specs[v]]), versions))
    assert set(entry_of(log_connection, job)["versions"]) == set(versions)


def test_a_version_that_was_retired_meanwhile_does_not_come_back(log_connection, job, tmp_path):
    """Its driver had prepared it before."""
    specs = {version: spec_of(tmp_path, job, version) for version in "12"}
    announce(log_connection, tmp_path, [specs["1"]])
    retire(log_connection, tmp_path, job, "1", tmp_path / "gone")
    announce(log_connection, tmp_path, [specs["1"], specs["2"]])
    entry = entry_of(log_connection, job)
    assert (list(entry["versions"]), entry["retired"].keys(), entry["current"]) == (["2"], {"1"}, "2")
    assert current_versions(read_catalog(log_connection))[job] == "2"


def test_of_a_start_and_a_retirement_at_once_both_are_kept(log_connection, job, tmp_path):
    specs = {version: spec_of(tmp_path, job, version) for version in "123"}
    announce(log_connection, tmp_path, [specs["1"], specs["2"]])
    with ThreadPoolExecutor(2) as threads:
        retired = threads.submit(retire, log_connection, tmp_path, job, "1", tmp_path / "gone", force=True)
        threads.submit(announce, log_connection, tmp_path, [specs["3"]]).result()
        retired.result()
    entry = entry_of(log_connection, job)
    assert (set(entry["versions"]), entry["retired"]["1"]["output"]) == ({"2", "3"}, specs["1"].fixed.output)


def test_a_table_that_is_written_as_it_changes_has_no_windows_that_readers_wait_for(log_connection, job, tmp_path):
    """It wrote all that it had read, and a cutover to it waited for windows of 1,795,341,600 s to close."""
    spec = spec_of(tmp_path, job, "1")
    spec = msgspec.structs.replace(spec, job=msgspec.structs.replace(spec.job, kind="changelog", emit="changes"))
    announce(log_connection, tmp_path, [spec])
    assert "windows_by" not in entry_of(log_connection, job)["versions"]["1"]
