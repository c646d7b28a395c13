"""The arithmetic service: what it takes, what it says over HTTP, and its demo."""

import contextlib
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.arithmetic.client import Client, NoAnswer, ask
from examples.arithmetic.cluster import Cluster
from examples.arithmetic.demo import expected, script
from examples.arithmetic.history import read_log, terms, timeline
from examples.arithmetic.operations import MOST_BITS, RESERVED, Arithmetic, BadOperation, Operation, parse
from examples.arithmetic.relay import Relay
from examples.arithmetic.service import MODELS, Door, Options, _options, make_replica
from mainstem.client import Connection
from mainstem.client.append import append
from mainstem.client.topics import end_offsets, ensure_topic
from mainstem.core.config import BadSetting
from mainstem.replicate import Node, Refused, Timing
from mainstem.replicate.records import Beat, Claim, Result
from tests.support.repository import ROOT
from tests.support.serving import served

# -- operations


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("x?", Operation("x")),
        (" x ? ", Operation("x")),
        ("x+=5", Operation("x", "+=", "5")),
        ("some_name9 -= -2.50", Operation("some_name9", "-=", "-2.50")),
        ("y*=2", Operation("y", "*=", "2")),
        ("y/=3", Operation("y", "/=", "3")),
        ("x+=random", Operation("x", "+=", "random")),
    ],
)
def test_what_is_an_operation(text, operation):
    assert parse(text) == operation


@pytest.mark.parametrize(
    "text",
    ["", "x", "?", "x??", "X?", "x=5", "x+=", "x+=5;y+=1", "x+=5\ny+=1", "x**=2", "x+=1e9", "x+=.5", "x+=+5", "x+=٣", "5+=x",
     "x+=" + "9" * 101, "x" * 33 + "?", "x+=1/3", "__import__('os')?", *(f"{name}?" for name in RESERVED)],
)  # fmt: skip
def test_what_is_none_is_refused_in_a_line(text):
    with pytest.raises(BadOperation) as found:
        parse(text)
    assert "\n" not in str(found.value)
    with pytest.raises(Refused):
        Arithmetic().execute(text)


@given(st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("+-*/"), st.integers(-9, 9)), max_size=20))
def test_it_computes_as_exact_fractions_do(operations):
    service, truth = Arithmetic(), {"x": Fraction(), "y": Fraction()}
    for variable, sign, number in operations:
        before = dict(truth)
        if sign == "/" and number == 0:
            with pytest.raises(Refused, match="division by zero"):
                service.execute(f"{variable}/=0")
        else:
            truth[variable] = {
                "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b
            }[sign](before[variable], Fraction(number))  # fmt: skip
            value, changes = service.execute(f"{variable}{sign}={number}")
            service.assign(changes)
            assert value == str(truth[variable])
        other = Arithmetic()
        other.load(json.loads(json.dumps(service.dump())))
        assert [each.query(name) for each in (service, other) for name in "xy"] == [str(truth[n]) for n in "xyxy"]


def test_what_grows_too_long_is_refused_and_changes_nothing():
    service = Arithmetic()
    service.load({"x": str(2 ** (MOST_BITS - 1))})
    with pytest.raises(Refused, match="more than 4096 bits"):
        service.execute("x*=4")
    assert service.execute("x/=2")[0] == str(2 ** (MOST_BITS - 2))


def test_only_so_many_variables_are_there(monkeypatch):
    monkeypatch.setattr("examples.arithmetic.operations.MOST_VARIABLES", 1)
    service = Arithmetic()
    service.assign(service.execute("x+=1")[1])
    assert service.execute("x+=1")[0] == "2"
    with pytest.raises(Refused, match="1 variables"):
        service.execute("y+=1")


# -- HTTP


@pytest.fixture
def door(mainstem_log, request):
    """A node of its own topic behind HTTP: its `host:port`."""
    model = getattr(request, "param", "state-machine")
    options = Options(
        model, "n1", "127.0.0.1:0", {"n2": "127.0.0.1:9"}, mainstem_log.bootstrap,
        f"door-{uuid.uuid4().hex[:8]}",
        timing=Timing(0.1, 0.4, 0.1),
    )  # fmt: skip
    node_ready = threading.Event()
    made = {}

    class App:
        """The door's application; the node lives as long as its lifespan."""

        async def __call__(self, scope, receive, send):
            if scope["type"] != "lifespan":
                await made["door"].app(scope, receive, send)
                return
            await receive()
            async with Node(Connection(options.bootstrap), options.topic, make_replica(options)) as node:
                made["door"], made["node"] = Door(node, options), node
                node_ready.set()
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})

    with served(App()) as url:
        assert node_ready.wait(60)
        yield url.removeprefix("http://"), made


def test_a_session_of_one_client(door):
    address, _ = door
    client = Client([address])
    assert [client.operate(each) for each in ("x+=5", "x-=2", "x/=2", "x?", "y?", "x/=0")] == [
        "5", "3", "3/2", "3/2", "0", "x/=0: division by zero; x stays 3/2",
    ]  # fmt: skip
    said = ask(address, "/x?")
    assert (said.status, said.body["value"]) == (200, "3/2")
    local = ask(address, f"/x?level=local&basis={said.body['basis']}")
    assert (local.status, local.body["value"]) == (200, "3/2")
    status = ask(address, "/status").body
    assert status["role"] == "replica"
    assert status["position"] == local.body["basis"]


def test_a_request_that_is_sent_twice_is_carried_out_once(door):
    address, _ = door
    client = ask(address, "/clients", {}).body["client"]
    said = [ask(address, "/ops", {"op": "x+=5", "id": f"{client}-1"}) for _ in range(2)]
    assert [each.body["value"] for each in said] == ["5", "5"]
    unknown = ask(address, "/ops", {"op": "x+=5", "id": "999999-1"})
    assert (unknown.status, unknown.body["retry"]) == (409, False)


@pytest.mark.parametrize(
    ("path", "posted", "status", "error"),
    [
        ("/ops", {"op": "x=5"}, 400, "expected an operation, found 'x=5'"),
        ("/ops", {"op": "x+=random"}, 400, "found random"),
        ("/ops", {"op": "x+=5", "id": "7"}, 400, "id: expected <client>-<number>"),
        ("/ops", {"op": "x+=5", "id": "7-0"}, 400, "id: expected <client>-<number>"),
        ("/ops", {"op": "x+=5", "more": 1}, 400, "unknown field"),
        ("/ops", {"op": 5}, 400, "Expected `str`"),
        ("/ops", [], 400, "expected {'op'"),
        ("/ops", {"op": "x/=0"}, 422, "division by zero"),
        ("/ops", {"op": "x" * 5000}, 413, "larger than 4096 bytes"),
        ("/X", None, 400, "expected an operation"),
        ("/x?level=stale", None, 400, "expected level=barrier"),
        ("/x?basis=-1", None, 400, "basis=OFFSET"),
    ],
)
def test_what_is_not_carried_out_is_told_in_a_line(door, path, posted, status, error):
    said = ask(door[0], path, posted)
    assert said.status == status
    assert error in said.body["error"]
    assert "\n" not in said.body["error"]
    assert said.body["retry"] is False


def test_a_web_page_elsewhere_may_not_ask(door):
    request = urllib.request.Request(f"http://{door[0]}/clients", b"", {"origin": "http://elsewhere.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request)


@pytest.mark.parametrize("door", ["primary-backup"], indirect=True)
def test_a_backup_sends_its_clients_to_the_primary(door):
    address, made = door
    Client([address]).operate("x+=5")
    node = made["node"]
    offset = append(node._connection, node._place.topic, [(None, b'{"type":"claim","node":"n2","author":"n2.1"}')])[0]
    body = ask(address, f"/x?level=local&basis={offset}").body
    assert body["value"] == "5"
    said = ask(address, "/ops", {"op": "x+=5"})
    assert (said.status, said.location) == (307, "http://127.0.0.1:9/ops")
    assert said.body["retry"] is True
    assert said.body["primary"] == "n2"


def test_a_node_listens_on_the_loopback_only():
    arguments = ["--model", "state-machine", "--node", "n1", "--bootstrap", "127.0.0.1:1", "--listen"]
    assert _options([*arguments, "127.0.0.1:80", "--peers", "n2=127.0.0.1:81"]).peers == {"n2": "127.0.0.1:81"}
    assert _options([*arguments, "localhost:80"]).fenced
    for host in ("0.0.0.0", "192.168.0.1", "example.com"):
        with pytest.raises(BadSetting, match="loopback"):
            _options([*arguments, f"{host}:80"])


@pytest.mark.parametrize(
    "peers", ["n2:127.0.0.1:8002", "n2=127.0.0.1:81,n3:127.0.0.1:82", "=127.0.0.1:81", "n2=127.0.0.1", "n2=127.0.0.1:0",
              "n1=127.0.0.1:81", "n2=127.0.0.1:81,n2=127.0.0.1:82"]
)  # fmt: skip
def test_peers_that_are_none_are_refused(peers):
    """Dropped, they were no nodes: backups named a primary that nobody could find, fewer nodes were a majority."""
    arguments = ["--model", "state-machine", "--node", "n1", "--bootstrap", "127.0.0.1:1", "--listen", "127.0.0.1:80"]
    with pytest.raises(BadSetting, match=r"^--peers: [^\n]+$") as refused:
        _options([*arguments, "--peers", peers])
    assert refused.value.hint.startswith("as in ")


def test_a_client_that_nobody_answers_gives_up():
    with pytest.raises(NoAnswer, match="nobody had an answer in 0 s"):
        Client(["127.0.0.1:9"], seconds=0.1).operate("x?")


def client_of(nodes, *operations, script=""):
    command = [sys.executable, "-m", "examples.arithmetic.client", "--nodes", nodes, *operations]
    return subprocess.run(command, cwd=ROOT, input=script, capture_output=True, text=True, timeout=90, check=False)


def test_the_client_script_says_what_was_refused(door):
    fine = client_of(door[0], "x+=5", "x?")
    assert (fine.returncode, fine.stdout) == (0, "5\n5\n")
    refused = client_of(door[0], script="x/=0\nX?\n\nx?\n")
    zero, name, last = refused.stdout.splitlines()
    assert (refused.returncode, zero, last) == (1, "error: x/=0: division by zero; x stays 5", "5")
    assert name.startswith("error: expected an operation, found 'X?'")
    mistyped = client_of("garbage", "x?")
    assert (mistyped.returncode, mistyped.stderr.count("\n")) == (2, 1)
    assert "--nodes: expected HOST:PORT, found 'garbage'" in mistyped.stderr


def test_who_waits_for_an_answer_is_told_so(monkeypatch):
    monkeypatch.setattr("examples.arithmetic.client.SILENCE_S", 0)
    told = []
    with pytest.raises(NoAnswer):
        Client(["127.0.0.1:9", "127.0.0.1:10"], seconds=0.2, tell=told.append).operate("x?")
    assert told == ["no answer yet from 127.0.0.1:9, 127.0.0.1:10; asking for 0 s"]


# -- what the demo is made of


def test_the_truth_is_that_of_the_script():
    assert expected(["x+=5", "x?", "x/=0", "x/=2"]) == ["5", "5", "x/=0: division by zero; x stays 5", "5/2"]
    assert "x/=0" in script(40, seed=1)
    assert expected(script(400, seed=1)) != expected(sorted(script(400, seed=1)))  # their order matters


def test_the_timeline_names_each_term():
    records = [
        Claim("n1", "n1.1"),
        Result(0, 1, None),
        Claim("n2", "n2.1"),
        Result(0, 2, None),
        Beat(2, 1),
        Result(2, 2, None),
    ]
    log = [(offset, 1000 * offset, record) for offset, record in enumerate(records)]
    assert [(each.node, each.results, each.discarded) for each in terms(log)] == [("n1", 1, 1), ("n2", 1, 0)]
    assert timeline(log)[1] == "term     2  n2  at   2.00 s, after  1.00 s of silence: 1 results"


def test_what_a_relay_holds_back_arrives_when_it_is_released(mainstem_log):
    topic = "arithmetic-relay"
    ensure_topic(Connection(mainstem_log.bootstrap), topic, 1)
    with Relay(mainstem_log.bootstrap) as relay:
        behind = Connection(relay.address)
        append(behind, topic, [(None, b"a")])
        relay.hold()
        held = threading.Thread(target=append, args=(behind, topic, [(None, b"b")]))
        held.start()
        append(Connection(mainstem_log.bootstrap), topic, [(None, b"c")])
        assert end_offsets(Connection(mainstem_log.bootstrap), topic) == {0: 2}
        relay.release()
        held.join(60)
        assert end_offsets(Connection(mainstem_log.bootstrap), topic) == {0: 3}


@pytest.mark.parametrize("model", MODELS)
def test_a_node_ends_when_its_topic_is_not_one_of_its_kind(mainstem_log, model):
    topic = f"arithmetic-strange-{model}"
    with contextlib.suppress(Exception):
        ensure_topic(Connection(mainstem_log.bootstrap), topic, 1, {"retention.ms": "-1", "retention.bytes": "-1"})
    append(Connection(mainstem_log.bootstrap), topic, [(None, b"what?")])
    cluster = Cluster(model, mainstem_log.bootstrap, topic=topic, nodes=1)
    cluster.start("n1", wait=False)
    process = cluster.processes["n1"]
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.splitlines()[-1].startswith("arithmetic: offset 0: expected a record of a replicated service")


def test_the_log_of_results_has_the_values_and_not_the_operations(mainstem_log):
    """What the book says of both: commands like `x+=5` in one, variable values like `x=5` in the other."""
    found = {}
    for model in MODELS:
        topic = f"arithmetic-log-{model}"
        with Cluster(model, mainstem_log.bootstrap, "--silence-ms", "400", topic=topic, nodes=1) as cluster:
            client = Client(list(cluster.addresses.values()))
            assert [client.operate(each) for each in ("x+=5", "x*=2")] == ["5", "10"]
        found[model] = [record for _, _, record in read_log(Connection(mainstem_log.bootstrap), topic)]
    operations = [getattr(each, "operation", None) for each in found["state-machine"]]
    assert [each for each in operations if each] == ["x+=5", "x*=2"]
    changes = [getattr(each, "changes", None) for each in found["primary-backup"]]
    assert [each for each in changes if each] == [{"x": "5"}, {"x": "10"}]


def test_the_demo():
    done = subprocess.run(
        [sys.executable, "-m", "examples.arithmetic.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all as it should be" in done.stdout
    assert "x? 6: the 10 that were acknowledged are lost" in done.stdout
    assert "late: is discarded (stale)" in done.stdout
    assert done.stderr == ""
