"""A node as a process: its start, its end, and a kill at any moment."""

import contextlib
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from mainstem.client.basis import Basis
from mainstem.client.catalog import read_catalog
from tests.serve.fleet import header
from tests.serve.node_process import NodeProcess
from tests.support.waiting import wait_until


@pytest.fixture
def process(fleet, tmp_path):
    process = NodeProcess(fleet, tmp_path)
    yield process
    if process.process is not None and process.process.poll() is None:
        process.end(signal.SIGKILL)


def test_it_serves_and_stops_in_order(fleet, process):
    process.start()
    wait_until(lambda: httpx.get(f"{process.url}/health").status_code == 200, "all views are ready")
    wait_until(
        lambda: read_catalog(fleet.connection).get("node:n", {}).get("address") == process.address, "it is announced"
    )
    second = subprocess.run(process.command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert "Address already in use" in second.stdout
    assert process.end(signal.SIGTERM) == 0


def test_killed_at_any_moment_it_goes_on_and_no_answer_is_older_than_its_token(fleet, process):
    """Every kind of view, while a thousand changes are made; at each answer all that was written before it is there."""
    chance, rows, basis = random.Random(7), {}, Basis(fleet.log)
    process.start()
    for number in range(12):
        for _ in range(chance.randint(1, 40)):
            tailnum = f"N{chance.randrange(20)}"
            rows[tailnum] = rows.get(tailnum, 0) + 1
            basis += fleet.write(fleet.planes, (tailnum, f"maker{rows[tailnum]}", rows[tailnum]))
        if number % 2:
            process.end(signal.SIGKILL)
            process.start()
        tailnum = chance.choice(sorted(rows))
        ask = {"params": {"tailnum": tailnum, "timeout": 50}, "headers": header(basis), "timeout": 60}
        answer = httpx.get(f"{process.url}/views/planes/row", **ask)
        assert answer.json()["row"]["seats"] == rows[tailnum]
        query = {"sql": f"SELECT tailnum, seats FROM {fleet.planes.replace('-', '_')}"}
        answer = httpx.post(
            f"{process.url}/views/flights/query?timeout=50", json=query, headers=header(basis), timeout=60
        )
        assert dict(answer.json()["rows"]) == rows
        answer = httpx.get(
            f"{process.url}/views/names/search?q=tailnum:{tailnum}&timeout=50", headers=header(basis), timeout=60
        )
        assert [hit["row"]["seats"] for hit in answer.json()["hits"]] == [rows[tailnum]]


QUERY = {"sql": "SELECT sum(a.range * b.range % 7) FROM range(3000000) a, range(1000000) b", "seconds": 40}


@pytest.mark.parametrize("what", ["a position", "a query"])
def test_whoever_waits_is_told_as_soon_as_the_node_stops(fleet, process, what):
    process.start()
    wait_until(lambda: httpx.get(f"{process.url}/health").status_code == 200, "all views are ready")

    def ask():
        if what == "a query":
            return httpx.post(f"{process.url}/views/flights/query", json=QUERY, timeout=60)
        future = header(Basis(fleet.log, {fleet.planes: {0: 1 << 40}}))
        return httpx.get(f"{process.url}/views/planes/row?tailnum=x&timeout=300", headers=future, timeout=60)

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask)
        with contextlib.suppress(TimeoutError):  # until it is under way
            asked.result(1)
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        answer = asked.result(60)
        told_after = time.monotonic() - began
        assert process.process.wait(60) == 0
        ended_after = time.monotonic() - began
    process.process.stdout.close()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping"), answer.text
    assert answer.headers["Retry-After"] == "1"
    assert told_after < 2
    assert ended_after < 5
