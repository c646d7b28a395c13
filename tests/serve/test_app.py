"""A node over HTTP: its views against what was written, tokens, and what it says of bad requests."""

import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from mainstem.client.append import append
from mainstem.client.basis import Basis, parse
from mainstem.client.catalog import write_catalog
from mainstem.client.internal import CATALOG, PROGRESS
from mainstem.client.partitioner import partition_for
from mainstem.client.progress import Progress
from mainstem.client.topics import admin, end_offsets, ensure_topic
from mainstem.registry import avro
from mainstem.serve import app, control, keeper
from tests.serve.fleet import PLANE, header
from tests.serve.played import CLASS, PlayedJob
from tests.support.records import wait_for_markers
from tests.support.waiting import wait_until


def test_every_kind_of_view_answers_with_what_was_written_when_it_carries_the_token(fleet, tmp_path):
    with fleet.node(tmp_path) as http:
        for number in range(20):
            basis = fleet.write(fleet.planes, ("N1", f"maker{number}", number), ("N2", "BOEING", 100))
            answer = http.get("/views/planes/row", params={"tailnum": "N1"}, headers=header(basis))
            assert answer.status_code == 200, answer.text
            assert answer.json()["row"] == {"tailnum": "N1", "manufacturer": f"maker{number}", "seats": number}
            found = http.get("/views/names/search", params={"q": f"maker{number}"}, headers=header(basis)).json()
            assert [(hit["topic"], hit["row"]["seats"]) for hit in found["hits"]] == [(fleet.planes, number)]
            table = fleet.planes.replace("-", "_")
            sql = f"SELECT seats FROM {table} WHERE tailnum = ?"
            found = http.post("/views/flights/query", json={"sql": sql, "parameters": ["N1"]}, headers=header(basis))
            assert found.json()["rows"] == [[number]]
        basis = fleet.write(fleet.planes, ("N1", None, None))
        answer = http.get("/views/planes/row", params={"tailnum": "N1"}, headers=header(basis))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert parse(answer.headers["Mainstem-Basis"]).positions[fleet.planes].items() >= (
            basis.positions[fleet.planes].items()
        )
        assert http.get("/views/names/search", params={"q": "maker19"}, headers=header(basis)).json()["total"] == 0


def test_the_cookie_alone_lets_a_client_never_go_back(fleet, tmp_path):
    """Another node that is behind answers when it is as far as what the client has seen of the first."""
    with fleet.node(tmp_path / "one") as one, fleet.node(tmp_path / "two") as two:
        for number in range(10):
            basis = fleet.write(fleet.planes, ("N1", "x", number))
            answer = one.get("/views/planes/row", params={"tailnum": "N1"}, headers=header(basis))
            token = one.cookies["mainstem_basis"]
            assert answer.headers["Mainstem-Basis"] == token
            cookie = {"Cookie": f"mainstem_basis={token}"}
            seen = two.get("/views/planes/row", params={"tailnum": "N1"}, headers=cookie)
            assert seen.json()["row"]["seats"] == number


def test_a_position_that_does_not_come_is_answered_with_how_far_it_is(fleet, tmp_path):
    with fleet.node(tmp_path) as http:
        end = fleet.write(fleet.planes, ("N1", "x", 1)).positions[fleet.planes]
        (partition,) = end
        there = header(Basis(fleet.log, {fleet.planes: end}))
        assert http.get("/views/planes/row", params={"tailnum": "N1"}, headers=there).status_code == 200
        far = Basis(fleet.log, {fleet.planes: {partition: end[partition] + 5}})
        query = {"tailnum": "N1", "timeout": "0.5"}
        answer = http.get("/views/planes/row", params=query, headers=header(far))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_reached")
        assert f"{{{partition}: [{end[partition]}, {end[partition] + 5}]}}" in answer.json()["error"]["message"]
        assert answer.headers["Retry-After"] == "1"


def test_rows_come_in_the_order_of_their_keys_page_by_page(fleet, tmp_path):
    basis = fleet.write(fleet.planes, *((f"N{n:03}", "x", n) for n in range(50)))
    with fleet.node(tmp_path) as http:
        after, seen = None, []
        while True:
            params = {"limit": 7} | ({"after": after} if after else {})
            page = http.get("/views/planes/rows", params=params, headers=header(basis)).json()
            seen += [row["seats"] for row in page["rows"]]
            if (after := page["after"]) is None:
                break
        assert seen == list(range(50))


def test_pages_of_rows_that_take_too_long_are_cut_and_go_on(fleet, tmp_path, monkeypatch):
    """One row as of an old position took as long as it took to look at all keys, with a thread of the node's eight."""
    monkeypatch.setattr(app, "PAGE_SECONDS", 0)
    positions = [fleet.write(fleet.planes, (f"N{n}", "x", n)).positions[fleet.planes] for n in range(5)]
    at = {}
    for position in positions[:2]:
        at |= position
    at = Basis(fleet.log, {fleet.planes: at}).token
    with fleet.node(tmp_path) as http:
        basis = Basis(fleet.log, {fleet.planes: {p: o for each in positions for p, o in each.items()}})
        for params, expected in (({}, [0, 1, 2, 3, 4]), ({"at": at}, [0, 1])):
            seen, pages, after = [], 0, None
            while not pages or after is not None:
                asked = params | {"limit": 1000, "timeout": 60} | ({"after": after} if after else {})
                page = http.get("/views/planes/rows", params=asked, headers=header(basis)).json()
                seen += [row["seats"] for row in page["rows"]]
                after, pages = page["after"], pages + 1
            assert (seen, pages) == (expected, 5)


def test_a_view_is_read_as_of_any_position(fleet, tmp_path):
    states, positions, rows = [], [], {}
    with fleet.node(tmp_path) as http:
        position = {}
        for number in range(30):
            tailnum = f"N{number % 4}"
            row = (tailnum, "x", number if number % 5 else None)
            position = position | fleet.write(fleet.planes, row).positions[fleet.planes]
            rows = {**rows, tailnum: row[2]}
            states.append(dict(rows))
            positions.append(position)
        for state, position in zip(states, positions, strict=True):
            as_token = Basis(fleet.log, {fleet.planes: position}).token
            as_text = ",".join(f"{partition}:{offset}" for partition, offset in position.items())
            for at in (as_token, as_text):
                for tailnum in ("N0", "N1", "N2", "N3"):
                    answer = http.get("/views/planes/row", params={"tailnum": tailnum, "at": at})
                    expected = state.get(tailnum)
                    found = answer.json()["row"]["seats"] if answer.status_code == 200 else None
                    assert (answer.status_code, found) == (404 if expected is None else 200, expected)
                page = http.get("/views/planes/rows", params={"at": at}).json()["rows"]
                assert {row["tailnum"]: row["seats"] for row in page} == {
                    k: v for k, v in state.items() if v is not None
                }


def test_a_node_that_is_started_again_goes_on_and_one_that_lost_its_index_builds_it_anew(fleet, tmp_path):
    basis = fleet.write(fleet.planes, *((f"N{n}", "x", n) for n in range(20)))
    with fleet.node(tmp_path) as http:
        assert (
            http.get("/views/planes/row", params={"tailnum": "N7"}, headers=header(basis)).json()["row"]["seats"] == 7
        )
    basis += fleet.write(fleet.planes, ("N7", "x", 77))
    with fleet.node(tmp_path) as http:
        assert (
            http.get("/views/planes/row", params={"tailnum": "N7"}, headers=header(basis)).json()["row"]["seats"] == 77
        )
        assert (
            http.get("/views/planes/row", params={"tailnum": "N8"}, headers=header(basis)).json()["row"]["seats"] == 8
        )
    for damaged in (tmp_path / "views").rglob("index.json"):
        damaged.write_bytes(b"{")
    with fleet.node(tmp_path) as http:
        for query in ("/views/planes/row?tailnum=N7", "/views/names/search?q=x&limit=100"):
            assert http.get(query, headers=header(basis)).status_code == 200
        assert http.get("/views/names/search", params={"q": "x", "limit": 100}).json()["total"] == 20


def test_a_token_of_a_source_works_on_what_a_job_makes_of_it(fleet, tmp_path):
    """The job is played: it appends its row, then its progress."""
    job = f"seats-{uuid.uuid4().hex[:8]}"
    version = {"code": "c0de", "output": fleet.planes, "inputs": {"flights": fleet.flights}} | CLASS
    write_catalog(fleet.connection, {f"job:{job}": {"versions": {"1": version}}})
    with fleet.node(tmp_path) as http:
        source = fleet.write(fleet.flights, ("N1", "x", 1))
        answers = []

        def ask():
            answers.append(
                http.get("/views/planes/row", params={"tailnum": "N1", "timeout": 50}, headers=header(source))
            )

        asking = threading.Thread(target=ask)
        asking.start()
        derived = fleet.write(fleet.planes, ("N1", "derived", 1))
        wait_until(lambda: http.node.views["planes"].position.get(fleet.planes), "the row is applied")
        assert not answers  # it is applied, but nobody has said that it is all of what was posted
        progress = Progress(job, "1", 0, source.positions, {}, derived.positions)
        append(fleet.connection, PROGRESS, [(f"{job}@1".encode(), msgspec.json.encode(progress))])
        asking.join(60)
        assert answers[0].json()["row"]["manufacturer"] == "derived"
        seen = parse(answers[0].headers["Mainstem-Basis"]).positions
        assert seen[fleet.flights] == source.positions[fleet.flights]
        assert seen[CATALOG][0] > 0


def test_a_read_as_of_the_end_of_a_topic_is_answered_though_no_record_is_there(fleet, tmp_path):
    """Behind the last row lie markers of transactions, and what was aborted: it was not there for ever."""
    rows = fleet.write(fleet.planes, *[(f"N{n}", "x", n) for n in range(10)])
    view = {"planes": {"kind": "key-value", "topics": fleet.planes, "versions": True}}
    with fleet.node(tmp_path, **view) as http:
        assert http.get("/views/planes/row?tailnum=N1", headers=header(rows)).json()["row"]["seats"] == 1
        producer = Producer(fleet.connection.confluent(transactional_id=fleet.planes))
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(fleet.planes, b"never", b"N1", partition)
        assert producer.flush(60) == 0
        producer.abort_transaction(60)
        wait_for_markers(fleet.connection)
        ends = end_offsets(fleet.connection, fleet.planes)
        at = ",".join(f"{partition}:{offset}" for partition, offset in ends.items())
        for _ in range(2):
            answer = http.get("/views/planes/row", params={"tailnum": "N1", "at": at})
            assert answer.status_code == 200, answer.text
            assert answer.json()["row"]["seats"] == 1
        assert len(http.get("/views/planes/rows", params={"at": at}).json()["rows"]) == 10
        by_token = {"tailnum": "N1", "at": Basis(fleet.log, {fleet.planes: ends}).token}
        assert http.get("/views/planes/row", params=by_token).json()["row"]["seats"] == 1
        beyond = http.get("/views/planes/row", params={"tailnum": "N1", "at": f"0:{ends[0] + 1}", "timeout": "0.2"})
        assert (beyond.status_code, beyond.json()["error"]["code"]) == (503, "not_reached")


def test_a_read_as_of_a_token_is_refused_where_the_batch_that_covers_it_is_not_known_any_more(
    fleet, live_registry, tmp_path, monkeypatch
):
    """A later batch would be a wrong answer; the same node knows it, and so does one that reads far enough back."""
    job = PlayedJob(fleet, live_registry)
    job.start("1")
    view = {"seats": {"kind": "key-value", "topics": job.name, "versions": True}}
    written, made = [], []
    for seats in (1, 2, 3):
        written.append(job.write("N1", seats))
        made.append(job.run("1", ("N1", seats)))

    def seats(http, at):
        answer = http.get("/views/seats/row", params={"tailnum": "N1", "at": at}, headers=header(made[-1]))
        return answer.json()["row"]["seats"] if answer.status_code == 200 else answer

    with fleet.node(tmp_path, **view) as http:
        assert [seats(http, each.token) for each in written] == [1, 2, 3]
    monkeypatch.setattr(control, "_PROGRESS_RECORDS", 2)  # the last batch and the end of its transaction
    with fleet.node(tmp_path, **view) as http:
        for each in written:
            refused = seats(http, each.token)
            assert refused.status_code == 410, refused.text
            error = refused.json()["error"]
            assert error["code"] == "not_kept"
            assert error["message"] == (
                f"view seats: at: expected a token of what the job that makes {job.name} has read after its batch 2, "
                "the oldest that this node knows, found one of before"
            )
            assert "partition:offset" in error["hint"]
        (places,) = made[0].positions.values()
        assert seats(http, ",".join(f"{partition}:{offset}" for partition, offset in places.items())) == 1
        assert seats(http, (written[0] + made[2]).token) == 3
        written.append(job.write("N1", 4))
        made.append(job.run("1", ("N1", 4)))
        assert seats(http, written[-1].token) == 4


def test_the_token_of_an_answer_names_what_its_rows_were_made_of_though_they_are_there_before_that_is_read(
    fleet, live_registry, tmp_path
):
    """Somebody's transaction is open where jobs say what they have read: what follows is not read until it is decided.
    A token without it let the next read, of what the rows were made of, go back in time.
    """
    job = PlayedJob(fleet, live_registry)
    job.start("1")
    job.write("N1", 1)
    first = job.run("1", ("N1", 1))
    other = Producer(fleet.connection.confluent(transactional_id=uuid.uuid4().hex, log_level=2))
    other.init_transactions(60)
    with fleet.node(tmp_path, seats={"kind": "key-value", "topics": job.name}) as http:
        answer = http.get("/views/seats/row", params={"tailnum": "N1"}, headers=header(first))
        assert parse(answer.headers["Mainstem-Basis"]).positions[fleet.flights] == job.source[fleet.flights]
        other.begin_transaction()
        other.produce(PROGRESS, msgspec.json.encode(Progress("open", "1", 0, {})), b"open@1")
        assert other.flush(60) == 0
        job.write("N2", 2)
        second = job.run("1", ("N2", 2))
        early = http.get("/views/seats/row", params={"tailnum": "N2", "timeout": 1}, headers=header(second))
        other.abort_transaction(60)
        assert early.status_code == 503, parse(early.headers["Mainstem-Basis"])
        assert early.json()["error"]["code"] == "not_reached"
        assert "it is not known what the answer was made of after 1 s" in early.json()["error"]["message"]
        assert f"(partition: [read, shown]) {{'{job.name}': " in early.json()["error"]["message"]
        answer = http.get("/views/seats/row", params={"tailnum": "N2"}, headers=header(second))
        assert answer.json()["row"]["seats"] == 2
        assert parse(answer.headers["Mainstem-Basis"]).positions[fleet.flights] == job.source[fleet.flights]


def test_a_row_that_somebody_wrote_beside_the_job_is_answered(fleet, live_registry, tmp_path):
    """No batch will ever say what it was made of."""
    job = PlayedJob(fleet, live_registry)
    job.start("1")
    row = avro.encode(job.schemas["1"], PLANE, {"tailnum": "N1", "manufacturer": "by hand", "seats": 1})
    with fleet.node(tmp_path, seats={"kind": "key-value", "topics": job.name}) as http:
        written = Basis(fleet.log, {job.name: append(fleet.connection, job.name, [(b"N1", row)])})
        answer = http.get("/views/seats/row", params={"tailnum": "N1", "timeout": 30}, headers=header(written))
        assert answer.status_code == 200, answer.text
        assert answer.json()["row"]["manufacturer"] == "by hand"
        assert parse(answer.headers["Mainstem-Basis"]).positions[job.name] == written.positions[job.name]
        again = http.get("/views/seats/row", params={"tailnum": "N1", "timeout": 0})
        assert again.status_code == 200  # once is enough
        job.write("N2", 2)
        answer = http.get("/views/seats/row", params={"tailnum": "N2"}, headers=header(job.run("1", ("N2", 2))))
        assert parse(answer.headers["Mainstem-Basis"]).positions[fleet.flights] == job.source[fleet.flights]


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/views/nothing/row?tailnum=N1", 404, "no such view"),
        ("/views/flights/row?tailnum=N1", 404, "expected a key-value view"),
        ("/views/planes/row", 400, "expected a value of every column of the key (tailnum), found 0"),
        ("/views/planes/row?seats=1", 400, "expected columns of the key (tailnum), found another one"),
        ("/views/planes/rows?limit=x", 400, "limit: expected a number"),
        ("/views/planes/rows?limit=0", 400, "limit: expected 1 or more"),
        ("/views/planes/rows?after=%25", 400, "after: expected what the page before has"),
        ("/views/planes/row?tailnum=N1&at=x", 400, "at: expected a token, or partition:offset"),
        ("/views/planes/row?tailnum=N1&at=0:99999999999999999999999", 400, "an offset below 2**63"),
        ("/views/planes/row?tailnum=N1&at=99999999999:1", 400, "at: expected a partition below 2**31"),
        (f"/views/names/search?q={'(' * 2000}", 400, "query: expected up to 50 parentheses"),
        ("/views/planes/row?tailnum=N1&timeout=-1", 400, "timeout: expected"),
        ("/views/names/search", 400, "expected ?q=WORDS"),
        ("/views/names/search?q=nothing:there", 400, "query: "),
        ("/views/planes/row?tailnum=N1&tailnum=N2", 400, "tailnum: expected it once, found it 2 times"),
        ("/views/planes/rows?limit=1&limit=2", 400, "limit: expected it once"),
        ("/views/planes/row?tailnum=N1&at=0:6,0:1", 400, "at: expected each partition once, found 0 again"),
        ("/nothing/there", 404, "/nothing/there: there is nothing at this path"),
        ("/views/planes/nothing", 404, "there is nothing at this path"),
        ("/views/flights/query", 405, "expected POST, found GET"),
    ],
)
def test_bad_requests_are_answered_in_a_line(fleet, tmp_path, path, status, told):
    fleet.write(fleet.planes, ("N1", "x", 1))
    with fleet.node(tmp_path) as http:
        answer = http.get(path)
        assert (answer.status_code, told in answer.json()["error"]["message"]) == (status, True), answer.text


def test_a_wrong_method_is_told_with_those_that_are_right(fleet, tmp_path):
    with fleet.node(tmp_path) as http:
        answer = http.post("/views")
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD"}


def test_a_table_has_the_columns_of_its_schema_before_its_first_record(fleet, tmp_path):
    table = fleet.flights.replace("-", "_")
    sql = {"sql": f"SELECT _key, manufacturer, seats FROM {table}"}
    with fleet.node(tmp_path) as http:
        answer = http.post("/views/flights/query", json=sql)
        assert answer.json() == {"columns": ["_key", "manufacturer", "seats"], "rows": [], "more": False}
        basis = fleet.write(fleet.flights, ("N1", "x", 1))
        assert http.post("/views/flights/query", json=sql, headers=header(basis)).json()["rows"] == [["N1", "x", 1]]


def test_rows_of_the_empty_key_replace_each_other_and_go(fleet, tmp_path):
    """SQL and search took it for none, and kept all; no view took its tombstone for one."""
    table = fleet.planes.replace("-", "_")

    def shown(basis):
        sql = {"sql": f"SELECT seats FROM {table}"}
        found = http.post("/views/flights/query", json=sql, headers=header(basis)).json()["rows"]
        hits = http.get("/views/names/search?q=maker", headers=header(basis)).json()["hits"]
        rows = http.get("/views/planes/rows", headers=header(basis)).json()["rows"]
        return [each[0] for each in found], [hit["row"]["seats"] for hit in hits], [row["seats"] for row in rows]

    with fleet.node(tmp_path) as http:
        assert shown(fleet.write(fleet.planes, *(("", "maker", seats) for seats in (1, 2, 3)))) == ([3], [3], [3])
        assert shown(fleet.write(fleet.planes, ("", None, None))) == ([], [], [])


def test_queries_that_are_none_or_may_not_be_are_refused(fleet, tmp_path):
    with fleet.node(tmp_path) as http:
        for body in (b"", b"[]", b'{"sql": 5}', b'{"sql": "SELECT 1", "x": 1}', b'{"sql": "SELECT 1", "limit": 0}'):
            assert http.post("/views/flights/query", content=body).status_code == 400
        for sql in ("DROP TABLE x", "SELECT * FROM read_csv('/etc/passwd')", "SELECT 1; SELECT 2"):
            assert http.post("/views/flights/query", json={"sql": sql}).status_code == 400
        assert http.post("/views/flights/query", json={"sql": "SELECT 1 AS one"}).json() == {
            "columns": ["one"], "rows": [[1]], "more": False,
        }  # fmt: skip
        answer = http.post("/views/flights/query", json={"sql": "SELECT map {true: 1, false: 2}"})
        assert (answer.status_code, answer.json()["rows"]) == (200, [[{"true": 1, "false": 2}]])
        assert http.post("/views/flights/query", content=b"x" * (2 << 20)).status_code == 400


def test_queries_that_take_long_hold_up_no_other_reads_and_those_that_are_too_many_are_told(
    fleet, tmp_path, monkeypatch
):
    monkeypatch.setattr(app, "QUERIES", 1)
    monkeypatch.setattr(app, "MOST_WAITING_QUERIES", 1)
    slow = {"sql": "SELECT count(*) FROM range(1000000000000) a, range(1000) b", "seconds": 5}
    with fleet.node(tmp_path) as http, ThreadPoolExecutor(8) as threads:
        headers = header(fleet.write(fleet.planes, ("N1", "BOEING", 1)))
        ask = {
            "/views/planes/row": {"tailnum": "N1"},
            "/views/planes/rows": {},
            "/views/names/search": {"q": "boeing"},
        }
        for path, params in ask.items():
            assert http.get(path, params=params, headers=headers).status_code == 200
        assert http.post("/views/flights/query", json={"sql": "SELECT 1"}, headers=headers).status_code == 200
        queries = [threads.submit(http.post, "/views/flights/query", json=slow) for _ in range(6)]
        wait_until(lambda: sum(each.done() for each in queries) == 4, "four of six are refused")
        refused = [each.result() for each in queries if each.done()]
        assert {each.status_code for each in refused} == {429}
        assert refused[0].headers["Retry-After"] == "1"
        for path, params in ask.items():
            assert http.get(path, params=params).status_code == 200
        assert sum(each.done() for each in queries) == 4  # they still run
        told = [each.result() for each in queries if each.result().status_code != 429]
        assert [each.status_code for each in told] == [400, 400]
        assert "longer than 5 s" in told[0].json()["error"]["message"]


def test_tokens_of_another_log_and_those_that_are_none_are_refused(fleet, tmp_path):
    with fleet.node(tmp_path) as http:
        for token, status in (("x", 400), (Basis("other", {"t": {0: 1}}).token, 409)):
            answer = http.get("/views/planes/row", params={"tailnum": "N1"}, headers={"Mainstem-Basis": token})
            assert answer.status_code == status
        answer = http.get("/views/planes/row", params={"tailnum": "N1", "at": Basis("other", {}).token})
        assert answer.status_code == 409


def test_health_tells_what_cannot_be_asked_yet(fleet, tmp_path):
    missing = f"later-{uuid.uuid4().hex[:8]}"
    views = {"later": {"kind": "sql", "topics": missing}, "planes": {"kind": "key-value", "topics": fleet.planes}}
    with fleet.node(tmp_path, **views) as http:
        wait_until(lambda: http.get("/views").json()["views"]["planes"]["ready"], "the view is ready")
        answer = http.get("/health")
        assert answer.status_code == 503
        assert f"topic {missing} is not in the catalog yet" in answer.json()["views"]["later"]["why"]
        asked = http.post("/views/later/query?timeout=0.2", json={"sql": "SELECT 1"})
        assert asked.status_code == 503
        ensure_topic(fleet.connection, missing, 1)
        write_catalog(fleet.connection, {f"topic:{missing}": {"kind": "stream"}})
        wait_until(lambda: http.get("/health").status_code == 200, "all is ready")


def test_health_tells_that_it_cannot_be_saved_which_indexes_answer(fleet, tmp_path):
    """No read is answered before: it would be of no known position of the catalog."""
    blocked = tmp_path / "current.json.new"
    blocked.mkdir()
    with fleet.node(tmp_path, planes={"kind": "key-value", "topics": fleet.planes}) as http:
        wait_until(lambda: http.get("/views").json()["views"]["planes"]["ready"], "the index can be asked")
        answer = http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
        why = f"it is not saved yet which indexes answer: {tmp_path / 'current.json'}"
        assert answer.json()["why"].startswith(why)
        read = http.get("/views/planes/row?tailnum=N1&timeout=0.2")
        assert read.status_code == 503
        assert why in read.json()["error"]["message"]
        blocked.rmdir()
        wait_until(lambda: http.get("/health").status_code == 200, "it is saved")
        assert http.get("/health").json()["why"] == ""
        assert http.get("/views/planes/row?tailnum=N1&timeout=0").status_code == 404


def test_a_read_with_the_token_of_a_write_to_a_partition_that_was_added_is_answered(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "_LOOK_SECONDS", 1e9)
    with fleet.node(tmp_path) as http:
        token = fleet.write(fleet.planes, ("N1", "x", 1))
        assert http.get("/views/planes/row?tailnum=N1", headers=header(token)).status_code == 200
        for future in admin(fleet.connection).create_partitions([NewPartitions(fleet.planes, 9)]).values():
            future.result(60)
        names, tokens = [f"M{number}" for number in range(30)], []

        def went_there():  # Apache Kafka answers before its brokers tell producers of new partitions
            tokens.append(fleet.write(fleet.planes, *((name, "y", 2) for name in names)))
            return max(tokens[-1].positions[fleet.planes]) > 1

        wait_until(went_there, "rows went to a partition that was added")
        rows = http.get("/views/planes/rows", headers=header(tokens[-1])).json()["rows"]
        assert {row["tailnum"] for row in rows} == {"N1", *names}


def test_an_undecodable_record_is_left_out_and_the_others_are_there(fleet, tmp_path):
    append(fleet.connection, fleet.planes, [(b"N0", b"\0\0\0\0\1bad"), (b"\xff", b"x")])
    basis = fleet.write(fleet.planes, ("N1", "x", 1))
    with fleet.node(tmp_path) as http:
        answer = http.get("/views/planes/row", params={"tailnum": "N1"}, headers=header(basis))
        assert answer.json()["row"]["seats"] == 1


FOREIGN = {
    "a text": b"hello",
    "JSON with other columns": b'{"nothing": "of ours"}',
    "a list for a key, a text for a number": b'{"tailnum": ["N5"], "seats": "many"}',
    "numbers beyond all types": b'{"tailnum": 1%s, "seats": 1%s}' % (b"0" * 400, b"0" * 400),
    "text of JSON that is no UTF-8": b'"\xff"',
    "JSON deeper than it can be told": b'{"tailnum": %s1%s}' % (b"[" * 900, b"]" * 900),
}
"""Which any client may write beside the rows that have a schema."""


@pytest.mark.parametrize("kind", FOREIGN)
def test_records_of_nobody_s_schema_are_left_out_where_they_do_not_fit_and_the_others_are_there(fleet, tmp_path, kind):
    with fleet.node(tmp_path) as http:
        for number in (1, 2):
            for topic in (fleet.planes, fleet.flights):
                fleet.write(topic, ("N1", "BOEING", number))
                append(fleet.connection, topic, [(b"N1", FOREIGN[kind])] * 2)
            basis = fleet.write(fleet.planes, ("N1", "BOEING", number)) + fleet.write(
                fleet.flights, ("N1", "x", number)
            )
            headers = header(basis)
            answer = http.get("/views/planes/row", params={"tailnum": "N1"}, headers=headers)
            assert (answer.status_code, answer.json()["row"]["seats"]) == (200, number), answer.text
            assert http.get("/views/planes/rows", headers=headers).json()["rows"] == [answer.json()["row"]]
            found = http.get("/views/names/search", params={"q": "boeing"}, headers=headers)
            assert (found.status_code, found.json()["total"]) == (200, number + 1), found.text
            table = fleet.flights.replace("-", "_")
            found = http.post("/views/flights/query", json={"sql": f"SELECT seats FROM {table}"}, headers=headers)
            assert found.status_code == 200, found.text
            assert sorted(found.json()["rows"]) == [[each] for each in range(1, number + 1) for _ in range(2)]
        views = http.get("/views").json()["views"]
        assert views["planes"]["left_out"]["records"] == 4
        assert views["flights"]["left_out"]["records"] in range(
            4, 9
        )  # a row that the next one replaces is not looked at
        assert "offset" in views["flights"]["left_out"]["last"]
        for view in http.node.views.values():
            for topic, reads in view.current.keeper.books.items():
                ends = {partition: read.end for partition, read in reads.items()}
                assert sum(read.count for read in reads.values()) == sum(ends.values()), topic


def test_rows_of_a_schema_of_nobody_s_are_left_out_where_they_do_not_fit(fleet, live_registry, tmp_path):
    """Of another subject: a type that a table cannot take, no record at all, a change record without what one has."""
    text = json.loads(PLANE)
    text["fields"][2]["type"] = "string"
    change = {"type": "record", "name": "Odd", "mainstem": "change", "fields": [{"name": "x", "type": "int"}]}
    foreign = [
        (json.dumps(text), {"tailnum": "N7", "manufacturer": None, "seats": "many"}),
        ('"string"', "a text"),
        (json.dumps(change), {"x": 1}),
    ]
    values = [
        avro.encode(live_registry.register(f"other{number}-{fleet.planes}-value", schema), schema, row)
        for number, (schema, row) in enumerate(foreign)
    ]
    with fleet.node(tmp_path) as http:
        for number in (1, 2):
            fleet.write(fleet.planes, ("N1", "x", number))
            append(fleet.connection, fleet.planes, [(b"N1", value) for value in values])
            headers = header(fleet.write(fleet.planes, ("N1", "x", number)))
            table = fleet.planes.replace("-", "_")
            found = http.post("/views/flights/query", json={"sql": f"SELECT seats FROM {table}"}, headers=headers)
            assert (found.status_code, found.json()["rows"]) == (200, [[number]]), found.text
        assert http.get("/views").json()["views"]["flights"]["left_out"]["records"] >= 2


def test_the_openapi_document_has_the_columns_of_each_view(fleet, tmp_path):
    fleet.write(fleet.planes, ("N1", "x", 1))
    with fleet.node(tmp_path) as http:
        wait_until(lambda: http.get("/health").status_code == 200, "all is ready")
        found = http.get("/openapi.json").json()
        row = found["paths"]["/views/planes/row"]["get"]
        assert [p["name"] for p in row["parameters"]] == ["tailnum", "at", "Mainstem-Basis", "timeout"]
        columns = row["responses"]["200"]["content"]["application/json"]["schema"]["properties"]["row"]["properties"]
        assert columns["seats"] == {"type": ["integer", "null"], "format": "int32"}
        assert set(found["paths"]) == {
            "/health", "/views", "/views/planes/row", "/views/planes/rows", "/views/names/search", "/views/flights/query",
        }  # fmt: skip


def test_a_column_that_is_added_later_is_there(fleet, live_registry, tmp_path):
    """The search index is built anew for it, the table of the SQL index gets it."""
    fleet.write(fleet.planes, ("N1", "x", 1))
    with fleet.node(tmp_path) as http:
        wait_until(lambda: http.get("/health").status_code == 200, "all is ready")
        wider = json.loads(PLANE)
        wider["fields"].append({"name": "engine", "type": ["null", "string"], "default": None})
        schema_id = live_registry.register(f"{fleet.planes}-value", json.dumps(wider))
        row = {"tailnum": "N2", "manufacturer": "y", "seats": 2, "engine": "turbofan"}
        value = avro.encode(schema_id, json.dumps(wider), row)
        basis = Basis(fleet.log, {fleet.planes: append(fleet.connection, fleet.planes, [(b"N2", value)])})
        found = http.get("/views/names/search", params={"q": "engine:turbofan"}, headers=header(basis)).json()
        assert [hit["row"]["tailnum"] for hit in found["hits"]] == ["N2"]
        table = fleet.planes.replace("-", "_")
        sql = {"sql": f"SELECT tailnum, engine FROM {table} ORDER BY 1"}
        rows = http.post("/views/flights/query", json=sql, headers=header(basis)).json()["rows"]
        assert rows == [["N1", None], ["N2", "turbofan"]]


def test_a_topic_that_is_deleted_and_made_anew_is_read_anew(fleet, live_registry, tmp_path):
    from mainstem.client.topics import delete

    fleet.write(fleet.planes, ("N1", "x", 1), ("N2", "x", 2))
    view = {"planes": {"kind": "key-value", "topics": fleet.planes}}
    with fleet.node(tmp_path, **view) as http:
        wait_until(lambda: http.get("/health").status_code == 200, "all is ready")
    delete(fleet.connection, [fleet.planes])
    ensure_topic(fleet.connection, fleet.planes, 2)
    basis = fleet.write(fleet.planes, ("N2", "x", 22))
    with fleet.node(tmp_path, **view) as http:
        found = http.get("/views/planes/rows", headers=header(basis)).json()["rows"]
        assert [(row["tailnum"], row["seats"]) for row in found] == [("N2", 22)]


def test_a_table_that_its_source_truncates_is_empty_and_as_of_before_it_is_not(fleet, live_registry, tmp_path):
    change = {
        "type": "record",
        "name": "Change",
        "mainstem": "change",
        "fields": [
            {"name": "op", "type": "string"},
            {"name": "after", "type": ["null", json.loads(PLANE)], "default": None},
        ],
    }
    topic = f"table-{uuid.uuid4().hex[:8]}"
    ensure_topic(fleet.connection, topic, 2)
    schema_id = live_registry.register(f"{topic}-value", json.dumps(change))
    write_catalog(fleet.connection, {f"topic:{topic}": {"kind": "changelog", "key": ["tailnum"]}})

    def written(**rows):
        records = []
        for tailnum, seats in rows.items():
            row = {"op": "c", "after": {"tailnum": tailnum, "manufacturer": "x", "seats": seats}}
            records.append((tailnum.encode(), avro.encode(schema_id, json.dumps(change), row)))
        return Basis(fleet.log, {topic: append(fleet.connection, topic, records)})

    views = {
        "planes": {"kind": "key-value", "topics": topic, "versions": True},
        "names": {"kind": "search", "topics": [topic, fleet.planes]},
        "flights": {"kind": "sql", "topics": [topic, fleet.planes]},
    }
    with fleet.node(tmp_path, **views) as http:

        def seen(token, **params):
            rows = http.get("/views/planes/rows", params=params, headers=header(token)).json()["rows"]
            hits = http.get("/views/names/search", params={"q": "x", "limit": 99}, headers=header(token))
            hits = hits.json()["hits"]
            sql = {"sql": f"SELECT tailnum FROM {topic.replace('-', '_')}"}
            table = http.post("/views/flights/query", json=sql, headers=header(token)).json()["rows"]
            found = {row["tailnum"] for row in rows}, {hit["row"]["tailnum"] for hit in hits}, {row[0] for row in table}
            return [sorted(each) for each in found]

        names = [f"N{number}" for number in range(10)]
        before = fleet.write(fleet.planes, ("M1", "x", 1)) + written(**dict.fromkeys(names, 1))
        assert seen(before) == [names, sorted(["M1", *names]), names]
        truncate = avro.encode(schema_id, json.dumps(change), {"op": "t", "after": None})
        keys = {partition_for(key, 2): key for key in (b"\0truncate%d" % number for number in range(10))}
        append(fleet.connection, topic, [(key, truncate) for key in keys.values()])
        after = written(N3=3)
        assert seen(after) == [["N3"], ["M1", "N3"], ["N3"]]
        assert seen(after, at=before.token)[0] == names
