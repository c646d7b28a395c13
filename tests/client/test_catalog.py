import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.append import append
from mainstem.client.catalog import (
    CURRENT,
    Cutover,
    TopicEntry,
    current_versions,
    cutovers,
    entries,
    plain_name,
    previous_versions,
    read_catalog,
    retired_readers,
    topic_entries,
    users_of,
    way_back,
    with_cutover,
    write_catalog,
)
from mainstem.client.internal import CATALOG
from mainstem.core import CorruptData, UserError


def test_the_last_entry_of_a_name_counts_and_none_removes_it(connection, name):
    entry = TopicEntry(kind="changelog", key=("id",), subject=f"{name}-value")
    write_catalog(connection, {f"topic:{name}": TopicEntry(), f"job:{name}": {"version": "v1"}})
    write_catalog(connection, {f"topic:{name}": entry, f"job:{name}": None})
    catalog = read_catalog(connection)
    assert topic_entries(catalog)[name] == entry
    assert name not in entries(catalog, "job")


def test_an_entry_that_is_no_object_is_told(connection, name):
    key = f"topic:{name}".encode()
    append(connection, CATALOG, [(key, b"nonsense")])
    with pytest.raises(CorruptData, match=name):
        read_catalog(connection)
    append(connection, CATALOG, [(key, None)])


def test_an_entry_of_a_topic_that_is_none_is_told_by_its_key():
    """Every event was answered with 500, and the log had a line that named no topic."""
    with pytest.raises(CorruptData, match=r"__mainstem.catalog: key 'topic:orders': .* `\$.key`"):
        topic_entries({"topic:visits": {}, "topic:orders": {"key": 5}})


def test_retired_readers_are_known_by_the_key_under_which_they_spoke():
    jobs = {
        "job:a": {"versions": {}, "retired": {"1": {}, "2": {}}},
        "job:b": {"versions": {"1": {}}},
        "sink:c": {"retired": True, "topics": ["orders"]},
        "sink:d": {"retired": True, "reader": "d of p"},
        "sink:e": {"pattern": "x"},
    }
    assert retired_readers(jobs) == {"a@1", "a@2", "c", "d of p"}
    assert users_of(jobs, "orders") == ([], [])


def test_who_writes_and_who_reads_a_topic_is_known():
    catalog = {
        "topic:orders": {"producer": "source:shop"},
        "topic:totals.v2": {"producer": "job:totals"},
        "job:totals": {"versions": {"2": {"output": "totals.v2", "inputs": {"o": "orders"}}, "3": {}}},
        "sink:lake": {"type": "delta", "pattern": "^[^_].*"},
        "sink:replica": {"type": "postgres", "topics": ["orders"]},
    }
    assert users_of(catalog, "orders") == (["source shop"], ["job totals@2", "sink lake", "sink replica"])
    assert users_of(catalog, "totals.v2") == (["job totals@2"], ["sink lake"])
    assert users_of(catalog, "_own") == ([], [])


def test_a_splice_writes_its_topic_and_reads_what_all_versions_of_its_job_write():
    """`mainstem topic delete` said nothing of it, and a job was let write the same topic."""
    versions = {"1": {"output": "totals"}, "2": {"output": "totals.v2"}}
    catalog = {
        "topic:totals.all": {"producer": "splice:totals.all"},
        "job:totals": {"versions": versions},
        "job:other": {"versions": {"1": {"output": "other"}}},
        "project:x": {"name": "x", "splices": {"totals.all": "totals"}},
    }
    assert users_of(catalog, "totals.all") == (["splice totals.all"], [])
    assert users_of(catalog, "totals") == (["job totals@1"], ["splice totals.all"])
    assert users_of(catalog, "totals.v2") == (["job totals@2"], ["splice totals.all"])
    assert users_of(catalog, "other") == (["job other@1"], [])


def jobs_of(**versions):
    return {f"job:{job}": {"versions": {v: {} for v in each}, "current": each[0]} for job, each in versions.items()}


def test_a_cutover_of_several_jobs_is_one_record_and_leads_back():
    catalog = jobs_of(a=["1", "2"], b=["1", "2", "3"], c=["1"])
    assert current_versions(catalog) == {"a": "1", "b": "1", "c": "1"}
    assert previous_versions(catalog) == {}
    at = {"a": {"t": {0: 7}}}
    (key,) = changes = with_cutover(catalog, {"a": "2", "b": "3"}, at, 5)
    assert key == CURRENT
    catalog |= msgspec.json.decode(msgspec.json.encode(changes))
    assert current_versions(catalog) == {"a": "2", "b": "3", "c": "1"}
    assert previous_versions(catalog) == {"a": "1", "b": "1"}
    assert cutovers(catalog) == {"a": Cutover("2", "1", 5, {"t": {0: 7}}), "b": Cutover("3", "1", 5)}
    catalog |= with_cutover(catalog, way_back(catalog, ["b"]), {}, 6)
    assert current_versions(catalog) == {"a": "2", "b": "1", "c": "1"}
    catalog |= with_cutover(catalog, way_back(catalog, ["b"]), {}, 7)  # forward again
    assert cutovers(catalog)["b"] == Cutover("3", "1", 7)
    assert cutovers(catalog)["a"].since_ms == 5


def test_readers_are_moved_to_no_version_that_does_not_run():
    catalog = jobs_of(a=["1", "2"])
    catalog["job:a"]["retired"] = ["0"]
    for job, version, reason in [("a", "0", "was retired"), ("a", "9", "has never started"), ("b", "1", "has never"),
                                 ("a", "1", "is current already")]:  # fmt: skip
        with pytest.raises(UserError, match=f"^job {job}@{version} {reason}") as refused:
            with_cutover(catalog, {"a": "2", job: version}, {}, 0)
        assert refused.value.hint
    with pytest.raises(UserError, match=r"^job a: expected a version to go back to, found none: it was never cut over"):
        way_back(catalog, ["a"])
    catalog |= with_cutover(catalog, {"a": "2"}, {}, 0)
    del catalog["job:a"]["versions"]["1"]
    with pytest.raises(UserError, match="found none: version 1 was retired"):
        way_back(catalog, ["a"])


def test_a_job_whose_current_version_was_retired_has_the_one_of_its_entry():
    catalog = jobs_of(a=["1", "2", "3"])
    catalog |= with_cutover(catalog, {"a": "2"}, {}, 0)
    del catalog["job:a"]["versions"]["2"]
    assert (current_versions(catalog), previous_versions(catalog)) == ({"a": "1"}, {})
    catalog["job:a"] = {"versions": {}, "current": "", "retired": ["1", "2", "3"]}
    assert current_versions(catalog) == {"a": ""}


def test_a_record_that_is_none_of_ours_is_told():
    with pytest.raises(CorruptData, match=r"__mainstem.catalog: key 'current:jobs': .* `\$\[...\]"):
        current_versions({CURRENT: {"jobs": {"a": 5}}})


def test_the_offset_after_what_was_written_is_known(connection, name):
    first = write_catalog(connection, {f"job:{name}": {"versions": {}}, f"topic:{name}": None})
    assert write_catalog(connection, {f"job:{name}": None}) == first + 1
    assert write_catalog(connection, {}) == 0
    assert f"job:{name}" not in read_catalog(connection, linearizable=True)


@given(
    st.lists(
        st.tuples(st.sampled_from(["cut", "back"]), st.dictionaries(st.sampled_from("abc"), st.sampled_from("123")))
    )
)
def test_the_record_agrees_with_a_plain_list_of_moves(moves):
    """Each move is done as a whole or refused; a job's last two versions are current and the way back."""
    catalog = jobs_of(a="123", b="123", c="123")
    history = {job: ["1"] for job in "abc"}
    for number, (kind, targets) in enumerate(moves):
        back = {job: history[job][-2] for job in targets if len(history[job]) > 1}
        wanted = targets if kind == "cut" else back
        allowed = (
            all(history[job][-1] != version for job, version in wanted.items()) and wanted.keys() == targets.keys()
        )
        try:
            if kind == "cut":
                catalog |= with_cutover(catalog, targets, {}, number)
            else:
                catalog |= with_cutover(catalog, way_back(catalog, targets), {}, number)
        except UserError:
            assert not allowed
        else:
            assert allowed
            for job, version in wanted.items():
                history[job].append(version)
    assert current_versions(catalog) == {job: each[-1] for job, each in history.items()}
    assert previous_versions(catalog) == {job: each[-2] for job, each in history.items() if len(each) > 1}


def test_the_plain_name_of_an_output_is_that_of_its_job():
    assert [plain_name("1", "t"), plain_name("2", "t.v2"), plain_name("1", "t.v1")] == ["t", "t", "t.v1"]
