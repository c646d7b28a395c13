from mainstem.client.catalog import CURRENT
from mainstem.serve.targets import Target, is_kept, places, target


def catalog(current, previous="1", versions=("1", "2", "3"), **more):
    """The job `delays` writes the topic `delays`, that of `flights` the topic `enriched`."""
    written = {each: {"output": "delays" if each == "1" else f"delays.v{each}"} for each in versions}
    moved = {"version": current, "previous": previous, "since_ms": 1, "at": {"delays.v2": {"0": 7}, "x": {"0": 1}}}
    return {
        "job:delays": {"versions": written, "current": versions[0] if versions else ""},
        "job:flights": {"versions": {"1": {"output": "enriched"}}, "current": "1"},
        CURRENT: {"jobs": {"delays": moved}},
    } | more


def test_a_job_s_topic_means_that_of_the_current_version_and_any_other_itself():
    names = ("delays", "enriched", "planes", "delays.v3")
    found = target(catalog("2"), names)
    assert found.topics == {"delays": "delays.v2", "enriched": "enriched", "planes": "planes", "delays.v3": "delays.v3"}
    assert found.versions == {"delays": "2", "enriched": "1"}
    assert found.told == "delays.v2, enriched, planes, delays.v3"
    assert target({}, ("delays",)) == Target({"delays": "delays"})


def test_all_topics_of_a_job_move_with_it():
    also = {"2": {"output": "paid.v2", "also": {"refunds": "refunds.v2", "paid.state": "paid.state.v2"}}}
    moved = {
        CURRENT: {"jobs": {"paid": {"version": "2", "previous": "1", "since_ms": 1, "at": {"refunds.v2": {"0": 3}}}}}
    }
    found = {"job:paid": {"versions": also, "current": "1"}} | moved
    now = target(found, ("refunds", "paid.state", "paid"))
    assert now.topics == {"refunds": "refunds.v2", "paid.state": "paid.state.v2", "paid": "paid.v2"}
    assert places(found, now) == {"refunds.v2": {0: 3}}


def test_a_name_whose_job_has_no_version_left_means_what_it_did():
    now = target(catalog("2"), ("delays",))
    assert target(catalog("2", versions=()), ("delays",), now) == now


def test_each_has_a_directory_of_its_own():
    assert target(catalog("1"), ("delays", "planes")).label == ""
    assert target(catalog("2"), ("delays",)).label == "@2"
    assert target(catalog("2"), ("delays", "planes")).label == "@2+"
    assert target(catalog("2"), ("delays", "enriched")).label == "@2+1"


def test_the_way_back_is_kept_for_as_long_as_it_is_one():
    first, second = (target(catalog(each), ("delays", "planes")) for each in "12")
    now = catalog("2")
    assert is_kept(now, first)
    assert is_kept(now, second)
    assert not is_kept(catalog("3", previous="2"), first)
    assert not is_kept(catalog("2", versions=("2", "3")), first)


def test_what_the_record_says_of_the_topics_is_to_be_reached():
    assert places(catalog("2"), target(catalog("2"), ("delays",))) == {"delays.v2": {0: 7}}
    assert places(catalog("1"), target(catalog("1"), ("delays",))) == {}
