import json
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from mainstem.connect.gateway import Gateway
from mainstem.connect.gateway_config import GatewayConfig
from mainstem.dash.app import Dashboard
from mainstem.dash.state import State
from tests.support import processes
from tests.support.ports import free_port
from tests.support.serving import served


@pytest.fixture(scope="module")
def gateway(shop, tmp_path_factory):
    """A gateway as `mainstem up` starts it; its URL."""
    project = tmp_path_factory.mktemp("shop")
    (project / "mainstem.toml").write_text('[project]\nname = "shop"\n')
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mainstem", "run", "gateway", project, "--bootstrap", shop.connection.bootstrap]
    command += ["--gateway", address, "--data", project / "data"]
    process = processes.start(command, stdout=subprocess.PIPE, text=True)
    assert "listening" in process.stdout.readline()
    yield f"http://{address}", process
    processes.stop(process)
    process.stdout.close()


@pytest.fixture
def url(gateway):
    return gateway[0]


def test_browsers_get_the_page_and_clients_of_registries_their_answer(url):
    page = httpx.get(url, headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert httpx.get(url, headers={"accept": "application/json"}).json() == {}


@pytest.mark.parametrize("file", ["style.css", "common.js", "path.js", "topic.js", "job.js", "view.js", "icon.svg"])
def test_static_files_are_those_of_the_package(url, file):
    assert httpx.get(f"{url}/static/{file}").headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("file", ["none.js", "..%2Fapp.py", "%2e%2e%2fapp.py"])
def test_no_other_file_is_given(url, file):
    assert httpx.get(f"{url}/static/{file}").status_code == 404


def test_nothing_is_done_by_a_get(url):
    assert httpx.get(f"{url}/audit").status_code == 405


def test_other_pages_are_refused(url):
    answer = httpx.post(f"{url}/audit", headers={"origin": "http://other.example"})
    assert answer.status_code == 403
    assert httpx.get(f"{url}/topics/odd/records", headers={"host": "other.example"}).status_code == 403


def test_pages_of_other_ports_press_no_buttons(url):
    """One at localhost:8888 could have any job built anew, which runs the project's code."""
    for path in ("/audit", "/jobs/none/reprocess", "/operations/1/give-up"):
        assert httpx.post(url + path, headers={"origin": "http://localhost:8888"}).status_code == 403
    assert httpx.post(f"{url}/operations/1/give-up", headers={"origin": url}).status_code == 404  # which there is not
    assert httpx.post(f"{url}/operations/1/give-up").status_code == 404


def test_a_listener_for_all_is_asked_by_its_addresses_and_its_own_name(shop):
    """A page whose name was made to mean this machine read all topics."""
    dashboard = Dashboard(shop.connection, State, listen="0.0.0.0:9600")
    gateway = Gateway(
        shop.connection, GatewayConfig(listen="0.0.0.0:9600"), on_taken_over=lambda: None, doors=[dashboard]
    )
    with served(gateway.app, timeout_graceful_shutdown=1) as url:
        for host, code in [("evil.example", 403), ("10.0.0.5:9600", 200), (socket.gethostname(), 200)]:
            assert httpx.get(f"{url}/topics/odd/records", headers={"host": host}).status_code == code
        events = httpx.post(f"{url}/v1/topics/odd/events", json=[], headers={"host": "collector.example"})
        assert events.status_code != 403


def test_errors_have_their_codes(url):
    assert httpx.get(f"{url}/topics/none/about").status_code == 404
    answer = httpx.get(f"{url}/topics/shop.orders/records?partition=x")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "partition: expected a number, found 'x'")
    assert httpx.get(f"{url}/topics/shop.orders/records?before=1").status_code == 400


def test_records_come_in_pages(url):
    first = httpx.get(f"{url}/topics/shop.orders/records?limit=30").json()
    second = httpx.get(f"{url}/topics/shop.orders/records", params={"limit": 30, "before": first["next"]}).json()
    assert len(first["records"]) == len(second["records"]) == 30


def test_a_gateway_that_stops_ends_its_events(gateway):
    """The stop waited for those who listen, until their time was over. The last of this gateway's tests."""
    url, process = gateway
    with httpx.stream("GET", f"{url}/events", timeout=30) as events:
        lines = events.iter_lines()
        state = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
        assert (state["problem"], state["project"]) == ("", "shop")
        process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line.startswith("problem")] == []  # the stream ends as it should
    assert process.wait(30) == 0
