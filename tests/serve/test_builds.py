"""Views follow cutovers: over HTTP, with jobs that the test plays."""

import asyncio
import json
import threading

import msgspec
import pytest

from mainstem.client.append import append
from mainstem.client.basis import Basis, parse
from mainstem.client.catalog import CURRENT, read_catalog, write_catalog
from mainstem.client.internal import CATALOG
from mainstem.registry import avro
from mainstem.serve.builds import Builds
from mainstem.serve.errors import OtherShape
from tests.serve.fleet import PLANE, header
from tests.serve.played import PlayedJob, cutover
from tests.support.waiting import wait_until


@pytest.fixture
def job(fleet, live_registry):
    job = PlayedJob(fleet, live_registry)
    job.start("1")
    return job


def views_of(job):
    return {
        "seats": {"kind": "key-value", "topics": job.name},
        "words": {"kind": "search", "topics": job.name},
        "both": {"kind": "sql", "topics": [job.name, job.fleet.planes]},
    }


def row(http, token=None, tailnum="N1", **params):
    return http.get("/views/seats/row", params={"tailnum": tailnum, **params}, headers=header(token) if token else {})


def wait_for_next(http, name):
    """Until the index that is to come of a view is built."""
    node = http.node

    async def built():
        while node.views[name].moving is None:
            await node._changes.next()
        await node.views[name].moving.ready()

    asyncio.run_coroutine_threadsafe(built(), node._builds._loop).result(120)
    assert http.get("/views").json()["views"][name]["moving"]["why"] == ""


def made_by(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["row"]["manufacturer"]


def test_after_a_cutover_and_a_revert_reads_with_its_token_are_answered_by_the_version_that_came(fleet, job, tmp_path):
    with fleet.node(tmp_path, **views_of(job)) as http:
        written = job.write("N1", 1)
        job.run("1", ("N1", 1))
        answer = row(http, written)
        assert (made_by(answer), answer.json()["versions"]) == ("v1", {job.name: "1"})
        job.start("2")
        job.run("2", ("N1", 10))
        moved = cutover(fleet, (job, "2"))
        answer = row(http, moved)
        assert (made_by(answer), answer.json()["versions"]) == ("v2", {job.name: "2"})
        assert answer.headers["Mainstem-Version"] == f"{job.name}@2"
        assert http.get("/views/words/search", params={"q": "v2"}, headers=header(moved)).json()["total"] == 1
        table = job.name.replace("-", "_")
        query = {"sql": f"SELECT manufacturer, seats FROM {table}"}
        found = http.post("/views/both/query", json=query, headers=header(moved)).json()
        assert (found["rows"], found["versions"]) == ([["v2", 10]], {job.name: "2"})
        assert made_by(row(http, moved, version="1")) == "v1"
        about = http.get("/openapi.json").json()["paths"]["/views/seats/row"]["get"]
        assert "version" in [each["name"] for each in about["parameters"]]
        assert "Mainstem-Version" in about["responses"]["200"]["headers"]
        assert row(http, moved, version="3").status_code == 404
        assert made_by(row(http, cutover(fleet, (job, "1")))) == "v1"
        assert made_by(row(http)) == "v1"


def test_what_the_old_version_has_answered_is_reached_by_the_new_one_before_it_answers(fleet, job, tmp_path):
    """Version 2 was ready at the cutover, and has not read what version 1 has answered since."""
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.start("2")
        job.write("N1", 1)
        job.run("1", ("N1", 1))
        job.run("2", ("N1", 10))
        moved = cutover(fleet, (job, "2"))
        assert made_by(row(http, moved)) == "v2"
        written = job.write("N1", 2)
        seen = parse(row(http, job.run("1", ("N1", 2)), version="1").headers["Mainstem-Basis"])
        assert row(http, written, timeout="0.2").status_code == 503
        answers = []
        asking = threading.Thread(target=lambda: answers.append(row(http, seen, timeout="50")))
        asking.start()
        job.run("2", ("N1", 20))
        asking.join(60)
        assert answers[0].json()["row"] == {"tailnum": "N1", "manufacturer": "v2", "seats": 20}


def test_all_views_move_in_one_step_and_reads_go_on_until_then(fleet, job, live_registry, tmp_path):
    other = PlayedJob(fleet, live_registry)
    other.start("1")
    views = views_of(job) | {"others": {"kind": "key-value", "topics": other.name}}
    with fleet.node(tmp_path, **views) as http:
        job.write("N1", 1)
        other.source = job.source
        for each in (job, other):
            each.run("1", ("N1", 1))
        token = job.run("1", ("N2", 1)) + other.run("1", ("N2", 1))
        assert made_by(row(http, token)) == "v1"
        for each in (job, other):
            each.start("2", known=each is job)
            each.run("2", ("N1", 10))
        moved = cutover(fleet, (job, "2"), (other, "2"))
        wait_for_next(http, "seats")
        read = row(http, tailnum="N1")
        assert made_by(read) == "v1"  # the other one is not there yet
        assert made_by(row(http, parse(read.headers["Mainstem-Basis"]))) == "v1"
        refused = row(http, moved, timeout="0.2")
        assert refused.status_code == 503
        assert f"view others is to move to {other.output('2')}" in refused.json()["error"]["message"]
        seen, done = [], threading.Event()

        def watch():
            while not done.is_set():
                pair = (row(http), http.get("/views/others/row", params={"tailnum": "N1"}), row(http))
                seen.append([made_by(each) for each in pair])

        watching = threading.Thread(target=watch)
        watching.start()
        other.announce("2")
        assert made_by(row(http, moved)) == "v2"
        done.set()
        watching.join(60)
        assert {tuple(each) for each in seen} <= {
            ("v1", "v1", "v1"), ("v1", "v1", "v2"), ("v1", "v2", "v2"), ("v2", "v2", "v2"),
        }  # fmt: skip


def test_a_node_that_was_down_moves_when_it_is_up_and_answers_with_what_it_had_until_then(fleet, job, tmp_path):
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.write("N1", 1)
        assert made_by(row(http, job.run("1", ("N1", 1)))) == "v1"
    job.start("2", known=False)
    job.run("2", ("N1", 10))
    moved = cutover(fleet, (job, "2"))
    with fleet.node(tmp_path, **views_of(job)) as http:
        answer = row(http)
        assert made_by(answer) == "v1"
        assert made_by(row(http, parse(answer.headers["Mainstem-Basis"]))) == "v1"
        assert row(http, moved, timeout="0.2").status_code == 503
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.announce("2")
        assert made_by(row(http, moved)) == "v2"
    with fleet.node(tmp_path, **views_of(job)) as http:
        assert made_by(row(http)) == "v2"
        assert made_by(row(http, version="1")) == "v1"


def test_a_cutover_that_counted_counts_after_a_restart_while_the_next_one_is_to_come(
    fleet, job, live_registry, tmp_path
):
    other = PlayedJob(fleet, live_registry)
    other.start("1")
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.write("N1", 1)
        made = job.run("1", ("N1", 1))
        other.start("2")
        assert made_by(row(http, made + cutover(fleet, (other, "2")))) == "v1"  # no view of this node moves
        job.start("2", known=False)
        cutover(fleet, (job, "2"))
        seen = parse(row(http).headers["Mainstem-Basis"])
        wait_until(lambda: http.node.views["seats"].moving, "it is to move")
        assert made_by(row(http, seen)) == "v1"
    with fleet.node(tmp_path, **views_of(job)) as http:
        assert made_by(row(http, seen)) == "v1"


def test_a_read_of_the_version_before_as_of_a_write_waits_until_that_has_read_it(fleet, job, tmp_path):
    with fleet.node(tmp_path, seats=views_of(job)["seats"] | {"versions": True}) as http:
        job.write("N1", 1)
        job.run("1", ("N1", 1))
        job.start("2")
        job.run("2", ("N1", 10))
        assert made_by(row(http, cutover(fleet, (job, "2")))) == "v2"
        written = job.write("N1", 2)
        job.run("2", ("N1", 20))
        assert made_by(row(http, written)) == "v2"
        refused = row(http, version="1", at=written.token, timeout="0.2")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_reached")
        assert f"the jobs that make {job.name} have not read all of {fleet.flights}" in refused.text
        answers = []
        asking = threading.Thread(target=lambda: answers.append(row(http, version="1", at=written.token, timeout="50")))
        asking.start()
        job.run("1", ("N1", 2))
        asking.join(60)
        assert answers[0].json()["row"] == {"tailnum": "N1", "manufacturer": "v1", "seats": 2}


def test_nobody_goes_back_from_a_node_that_has_moved_to_one_that_has_not(fleet, job, tmp_path):
    with fleet.node(tmp_path / "one", **views_of(job)) as one, fleet.node(tmp_path / "two", **views_of(job)) as two:
        job.write("N1", 1)
        token = job.run("1", ("N1", 1))
        assert [made_by(row(each, token)) for each in (one, two)] == ["v1", "v1"]
        held = two.node._builds._settle
        two.node._builds._settle = lambda: None
        job.start("2")
        job.run("2", ("N1", 10))
        answer = row(one, cutover(fleet, (job, "2")))
        assert made_by(answer) == "v2"
        seen = parse(answer.headers["Mainstem-Basis"])
        assert made_by(row(two)) == "v1"
        assert row(two, seen, timeout="0.2").status_code == 503
        two.node._builds._settle = held
        job.run("2", ("N2", 20))
        assert made_by(row(two, seen)) == "v2"


def test_a_record_of_current_versions_that_is_not_ours_holds_nobody_up(fleet, job, tmp_path):
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.write("N1", 1)
        assert made_by(row(http, job.run("1", ("N1", 1)))) == "v1"
        before = read_catalog(fleet.connection).get(CURRENT)
        end = write_catalog(fleet.connection, {CURRENT: {"jobs": 5}})
        try:
            assert made_by(row(http, Basis(fleet.log, {CATALOG: {0: end}}))) == "v1"
        finally:
            write_catalog(fleet.connection, {CURRENT: before})


def test_a_record_of_somebody_else_beside_a_job_stops_no_cutover_after_it(fleet, job, tmp_path):
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.write("N1", 1)
        job.run("1", ("N1", 1))
        strange = avro.encode(job.schemas["1"], PLANE, {"tailnum": "N7", "manufacturer": "hand", "seats": 1})
        written = Basis(fleet.log, {job.name: append(fleet.connection, job.name, [(b"N7", strange)])})
        assert made_by(row(http, written, "N7")) == "hand"
        job.start("2")
        job.run("2", ("N1", 10))
        assert made_by(row(http, cutover(fleet, (job, "2")))) == "v2"
        assert made_by(row(http, written)) == "v2"


def test_an_index_is_removed_when_nobody_can_come_back_to_it(fleet, job, tmp_path):
    places = {f"seats{label}": tmp_path / "views" / f"seats{label}" for label in ("", "@2", "@3")}

    def there():
        return {name for name, place in places.items() if place.exists()}

    with fleet.node(tmp_path, **views_of(job)) as http:
        for version in "123":
            if version != "1":
                job.start(version)
            job.write("N1", int(version))
            job.run(version, ("N1", int(version)))
            if version != "1":
                assert made_by(row(http, cutover(fleet, (job, version)))) == f"v{version}"
        wait_until(lambda: there() == {"seats@2", "seats@3"}, "that of version 1 is removed")
        job.retire("2")
        wait_until(lambda: there() == {"seats@3"}, "that of version 2 is removed")
        saved = msgspec.json.decode((tmp_path / "current.json").read_bytes())
        assert [each["directory"] for each in saved["views"]["seats"]] == ["seats@3"]
        assert made_by(row(http)) == "v3"
    (tmp_path / "views" / "seats@9").mkdir()
    with fleet.node(tmp_path, **views_of(job)) as http:
        assert made_by(row(http)) == "v3"
        assert not (tmp_path / "views" / "seats@9").exists()


def test_once_the_current_version_is_retired_its_index_answers_no_more_than_it_has_read(
    fleet, job, tmp_path, monkeypatch
):
    """A read with the token of a later write was answered at once, until the index of the version left was built."""
    job.start("2")
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.write("N1", 1)
        job.run("2", ("N1", 10))
        read = job.run("1", ("N1", 1))
        assert made_by(row(http, read)) == "v1"
        written = job.write("N1", 2)
        with monkeypatch.context() as held:
            held.setattr(Builds, "_has_come", lambda _, view: view.moving is None)
            retired = job.retire("1")
            wait_for_next(http, "seats")
            assert made_by(row(http, read)) == "v1"
            assert row(http, written, timeout="0.3").status_code == 503
            assert row(http, retired, timeout="0.3").status_code == 503
        job.run("2", ("N1", 20))
        assert row(http, written + retired).json()["row"] == {"tailnum": "N1", "manufacturer": "v2", "seats": 20}
        assert row(http, read).json()["row"]["seats"] == 20  # what was read of version 1 is in it


def test_a_version_is_retired_while_a_node_is_down(fleet, job, tmp_path):
    job.start("2")
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.write("N1", 1)
        job.run("2", ("N1", 10))
        read = job.run("1", ("N1", 1))
        assert made_by(row(http, read)) == "v1"
    written = job.write("N1", 2)
    retired = job.retire("1")
    with fleet.node(tmp_path, **views_of(job)) as http:
        assert made_by(row(http, retired)) == "v2"
        assert row(http, written, timeout="0.3").status_code == 503
        job.run("2", ("N1", 20))
        assert row(http, written).json()["row"]["seats"] == 20


def test_a_restart_in_mid_cutover_waits_for_what_readers_had_seen_before_it(fleet, job, tmp_path):
    """The view moved to a version that had not read it yet, and readers went back in time."""
    job.start("2")
    with fleet.node(tmp_path, **views_of(job)) as http:
        job.write("N1", 1)
        job.run("1", ("N1", 1))
        job.run("2", ("N1", 10))
        job.write("N1", 2)
        assert row(http, job.run("1", ("N1", 2))).json()["row"]["seats"] == 2
        moved = cutover(fleet, (job, "2"))
        wait_for_next(http, "seats")
    with fleet.node(tmp_path, **views_of(job)) as http:
        assert row(http).json()["row"]["seats"] == 2
        assert row(http, moved, timeout="2").status_code == 503
        assert row(http).json()["row"]["seats"] == 2
        job.run("2", ("N1", 20))
        assert row(http, moved).json()["row"]["seats"] == 20


def test_a_token_of_what_somebody_else_wrote_beside_a_version_is_known_of_without_a_read_of_it(fleet, job, tmp_path):
    """The other version was held to read what nobody had read for it, until the first one wrote again."""
    job.start("2")
    job.write("N1", 1)
    job.run("1", ("N1", 1))
    job.run("2", ("N1", 10))
    beside = Basis(fleet.log, {job.name: append(fleet.connection, job.name, [(b"N9", None)])})
    with fleet.node(tmp_path, words=views_of(job)["words"] | {"topics": job.output("2")}) as http:
        asked = {"params": {"q": "v2"}, "headers": header(beside)}
        assert http.get("/views/words/search", **asked).json()["total"] == 1
        far = Basis(fleet.log, {job.name: {0: 1_000_000}})
        assert http.get("/views/words/search?q=v2&timeout=0.3", headers=header(far)).status_code == 503
        written = job.write("N1", 2)
        job.run("1", ("N1", 2))
        assert http.get("/views/words/search?q=v2&timeout=0.3", headers=header(written)).status_code == 503


def with_engine(fleet, registry, kind):
    """The schema gets a column; what is written with it, and its token."""
    wider = json.loads(PLANE)
    wider["fields"].append({"name": "engine", "type": ["null", kind], "default": None})
    text = json.dumps(wider)
    schema_id = registry.register(f"{fleet.planes}-value", text)

    def write(tailnum, engine):
        row = {"tailnum": tailnum, "manufacturer": "y", "seats": 2, "engine": engine}
        ends = append(fleet.connection, fleet.planes, [(tailnum.encode(), avro.encode(schema_id, text, row))])
        return Basis(fleet.log, {fleet.planes: ends})

    return write


def test_an_index_that_cannot_take_a_new_column_answers_until_the_next_one_does(
    fleet, live_registry, tmp_path, monkeypatch
):
    views = {"names": {"kind": "search", "topics": fleet.planes}}

    def total(http, query, token=None, **params):
        answer = http.get(
            "/views/names/search", params={"q": query, **params}, headers=header(token) if token else {"Cookie": "a=b"}
        )
        return answer.json()["total"] if answer.status_code == 200 else answer.json()["error"]["code"]

    with fleet.node(tmp_path, **views) as http:
        assert total(http, "x", fleet.write(fleet.planes, ("N1", "x", 1))) == 1
        monkeypatch.setattr(Builds, "_has_come", lambda _, view: view.moving is None)
        token = with_engine(fleet, live_registry, "string")("N2", "turbofan")
        wait_for_next(http, "names")
        assert total(http, "x") == 1
        assert total(http, "engine:turbofan", token, timeout="0.2") == "not_reached"
    places = {path.name for path in (tmp_path / "views").iterdir()}
    assert places == {"names", "names~"}
    with fleet.node(tmp_path, **views) as http:  # it was closed before it had taken over
        assert total(http, "x") == 1
        monkeypatch.undo()
        assert total(http, "engine:turbofan", token) == 1
        wait_until(lambda: [path.name for path in (tmp_path / "views").iterdir()] == ["names~"], "the old one is gone")
        assert total(http, "x") == 1
    with fleet.node(tmp_path, **views) as http:
        assert total(http, "engine:turbofan", token) == 1
        token = fleet.write(fleet.planes, ("N3", "z", 1))
        assert total(http, "z", token) == 1


def test_a_table_that_cannot_take_a_new_type_answers_until_the_next_one_does(fleet, live_registry, tmp_path):
    table = fleet.planes.replace("-", "_")
    views = {"flights": {"kind": "sql", "topics": fleet.planes}}
    with fleet.node(tmp_path, **views) as http:

        def count(token=None, **params):
            query = {"sql": f"SELECT count(*) FROM {table}"}
            headers = header(token) if token else {"Cookie": "a=b"}
            answer = http.post("/views/flights/query", json=query, headers=headers, params=params)
            return answer.json()["rows"][0][0] if answer.status_code == 200 else answer.json()["error"]["code"]

        assert count(fleet.write(fleet.planes, ("N1", "x", 1))) == 1
        index = http.node.views["flights"].current.index()

        def refuse(tables):
            raise OtherShape("a type that does not fit")

        index.extend = refuse
        token = with_engine(fleet, live_registry, "string")("N2", "turbofan")
        assert count(token) == 2
        assert http.node.views["flights"].current.index() is not index


def test_an_index_that_is_built_for_a_new_schema_holds_up_no_cutover(fleet, job, live_registry, tmp_path, monkeypatch):
    views = {"names": {"kind": "search", "topics": fleet.planes}, **views_of(job)}
    has_come = Builds._has_come
    monkeypatch.setattr(Builds, "_has_come", lambda self, view: not view.is_rebuilt and has_come(self, view))
    with fleet.node(tmp_path, **views) as http:
        token = fleet.write(fleet.planes, ("N1", "x", 1))
        assert http.get("/views/names/search?q=x", headers=header(token)).json()["total"] == 1
        with_engine(fleet, live_registry, "string")("N2", "turbofan")
        wait_for_next(http, "names")
        job.start("2")
        job.write("N1", 1)
        for version in "12":
            job.run(version, ("N1", 1))
        assert made_by(row(http, cutover(fleet, (job, "2")))) == "v2"
        assert http.node.views["names"].is_rebuilt
