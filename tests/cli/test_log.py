"""`mainstem log start`: one line when it serves, one line when it cannot, and a clean stop."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.core.process import PARENT
from tests.support.raw import RawClient

COMMAND = [sys.executable, "-m", "mainstem", "log", "start"]


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(environment or {})},
    )


@contextmanager
def started(data: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    argv = [*COMMAND, "--data", str(data), "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("listening on 127.0.0.1:"), line + process.stderr.read()
            yield process, line.split()[-1]
        finally:
            process.kill()


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_serves_and_stops_cleanly(tmp_path, number):
    with started(tmp_path) as (process, bootstrap):
        with RawClient(bootstrap) as raw:
            raw.create_topic("t")
            assert raw.produce("t", b"x") == 0
            process.send_signal(number)
            out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert out == ""
        assert "Traceback" not in errors
    with started(tmp_path) as (_, bootstrap), RawClient(bootstrap) as raw:
        assert raw.call(3, 4, topics=[{"name": "t"}], allow_auto_topic_creation=False).topics[0].error_code == 0


def test_who_stops_it_while_it_starts_is_told_of_no_failure(tmp_path):
    program = (
        "import time; from mainstem.standalone import log_process; from mainstem.cli import main\n"
        "log_process.run_log = lambda *_, **__: (print('imports', flush=True), time.sleep(60))\n"
        "main()"
    )
    command = [sys.executable, "-c", program, "log", "start", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "imports\n"
        process.terminate()
        assert process.wait(60) == 0


def test_what_was_acknowledged_survives_sigkill(tmp_path):
    with started(tmp_path) as (process, bootstrap):
        with RawClient(bootstrap) as raw:
            raw.create_topic("t")
            for _ in range(20):
                assert raw.produce("t", b"x") == 0
        process.kill()
        process.wait()
    with started(tmp_path) as (_, bootstrap), RawClient(bootstrap) as raw:
        asked = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        assert raw.call(2, 5, replica_id=-1, topics=asked).topics[0].partitions[0].offset == 20


@pytest.mark.parametrize(("supervised", "code"), [(False, 2), (True, 75)])
def test_a_failed_disk_ends_it_and_a_supervisor_starts_it_again(tmp_path, supervised, code):
    """The process lived on, and answered every request with an error. A file size limit fails writes as a disk does."""
    argv = [*COMMAND, "--data", str(tmp_path), "--listen", "127.0.0.1:0"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ({PARENT: str(os.getpid())} if supervised else {}),
        preexec_fn=limit,  # noqa: PLW1509 - no threads here
    ) as process:
        try:
            bootstrap = process.stdout.readline().split()[-1]
            with RawClient(bootstrap) as raw:
                raw.create_topic("t")
                acknowledged = 0
                while raw.produce("t", b"x" * 200_000) == 0:
                    acknowledged += 1
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    lines = [line for line in errors.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, errors
    assert "the log directory is offline" in lines[0]
    with started(tmp_path) as (_, bootstrap), RawClient(bootstrap) as raw:
        asked = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        assert raw.call(2, 5, replica_id=-1, topics=asked).topics[0].partitions[0].offset in (
            acknowledged,
            acknowledged + 1,
        )


def test_repair_says_what_is_lost_before_it_cuts(tmp_path):
    """Two topics with the same damage: one is cut for a person, the other for a program."""

    def told(*arguments, code=0):
        result = CliRunner().invoke(group, ["log", "repair", "--data", str(tmp_path), *arguments])
        assert result.exit_code == code, result.output
        return result.stdout

    with started(tmp_path) as (process, bootstrap):
        with RawClient(bootstrap) as raw:
            for topic in ("t", "u"):
                raw.create_topic(topic)
                for n in range(4):
                    assert raw.produce(topic, b"%d" % n * 100) == 0
        busy = repair(tmp_path, "t", "0")
        assert busy.returncode == 2
        assert f"in use by process {process.pid}" in busy.stderr
        process.terminate()
        process.wait()
    assert told("t", "0") == "t-0: no damage found\n"
    nothing = json.loads(told("t", "0", "--json"))
    assert nothing == {
        "topic": "t", "partition": 0, "result": "no damage", "damages": [], "open_transactions": {},
    }  # fmt: skip
    for topic in ("t", "u"):
        path = tmp_path / f"{topic}-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        batch = len(data) // 4
        data[2 * batch + 70] ^= 1
        path.write_bytes(data)
        found = told(topic, "0", code=1)
        assert f"{path}: damaged at byte {2 * batch}" in found
        assert f"would be lost: offsets 2 to 2 (1), {batch} bytes\nnothing was taken out" in found
        said = {
            "path": str(path), "position": 2 * batch, "first_offset": 2, "end_offset": 3, "lost_bytes": batch,
            "kept_in": None, "markers": 0, "set_right": False,
        }  # fmt: skip
        answer = json.loads(told(topic, "0", "--json", code=1))
        (stretch,) = answer.pop("damages")
        assert "bad CRC" in stretch.pop("reason")
        assert stretch == said
        assert answer == {"topic": topic, "partition": 0, "result": "damaged", "open_transactions": {}}
        assert path.read_bytes() == data
        kept = path.with_name(f"{2:020d}.lost")
        if topic == "t":
            done = repair(tmp_path, topic, "0", "--yes")
            assert done.returncode == 0
            assert f"lost: offsets 2 to 2 (1), {batch} bytes, kept in {kept}" in done.stdout
        else:
            done = json.loads(told(topic, "0", "--yes", "--json"))
            assert done["result"] == "repaired"
            assert (said | {"kept_in": str(kept)}).items() <= done["damages"][0].items()
        assert kept.read_bytes() == data[2 * batch : 3 * batch]
    with started(tmp_path) as (_, bootstrap), RawClient(bootstrap) as raw:
        for topic in ("t", "u"):
            asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            assert raw.call(2, 5, replica_id=-1, topics=asked).topics[0].partitions[0].offset == 4
            assert raw.produce(topic, b"next") == 0


@pytest.mark.parametrize(("arguments", "said"), [(("t", "0"), "meta.properties"), (("t", "x"), "integer")])
def test_repair_of_what_is_no_log(tmp_path, arguments, said):
    done = repair(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def repair(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "mainstem", "log", "repair", "--data", str(data), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("--data", str(tmp_path), "--listen", f"127.0.0.1:{port}")
        assert_one_line(done, f"127.0.0.1:{port} is in use")
        assert len(done.stderr.splitlines()) == 1  # a log that did not start was told to have stopped


def test_a_data_directory_in_use(tmp_path):
    with started(tmp_path):
        assert_one_line(run("--data", str(tmp_path), "--listen", "127.0.0.1:0"), str(tmp_path), "in use")


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:x", ":9092", "127.0.0.1:70000"])
def test_an_address_that_is_none(tmp_path, listen):
    data = tmp_path / "data"
    assert_one_line(run("--data", str(data), "--listen", listen), "--listen: expected HOST:PORT")
    assert not data.exists()


def test_an_address_of_another_machine(tmp_path):
    assert_one_line(run("--data", str(tmp_path), "--listen", "203.0.113.7:9092"), "cannot listen on 203.0.113.7:9092")


def test_a_data_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    data = tmp_path / "file" / "data"
    assert_one_line(run("--data", str(data)), f"--data {data}: expected a directory to write to")


def test_an_unknown_setting_is_named_with_its_file(tmp_path):
    config = tmp_path / "mainstem.toml"
    config.write_text("[broker]\nnum_partitoins = 3\n")
    done = run("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--config", str(config))
    assert_one_line(done, "num_partitoins", str(config))


def test_settings_come_from_the_file_and_the_environment(tmp_path):
    config = tmp_path / "mainstem.toml"
    config.write_text("[broker]\nnum_partitions = 3\n[log]\nread_threads = 2\n")
    with started(tmp_path / "data", "--config", str(config)) as (_, bootstrap), RawClient(bootstrap) as raw:
        made = raw.call(3, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        assert len(made.topics[0].partitions) == 3
    done = run("--data", str(tmp_path), "--listen", "127.0.0.1:0", environment={"MAINSTEM_BROKER__NODE_ID": "x"})
    assert_one_line(done, "node_id")


def test_the_addresses_of_all_listeners_are_told(tmp_path):
    config = tmp_path / "mainstem.toml"
    config.write_text("[broker.listeners.out]\nport = 0\nadvertised_host = 'away'\nadvertised_port = 4321\n")
    with started(tmp_path / "log", "--config", str(config)) as (process, bootstrap):
        process.terminate()
        lines = process.communicate(timeout=60)[1].splitlines()
    (told,) = (each for each in map(json.loads, lines) if each["event"] == "broker_started")
    assert (told["address"], told["listeners"]) == (bootstrap, {"out": "away:4321"})


def test_a_start_after_a_kill_says_so(tmp_path):
    for kill, recovered in ((True, False), (False, True), (False, False)):
        with started(tmp_path) as (process, bootstrap):
            with RawClient(bootstrap) as raw:
                if kill:
                    raw.create_topic("t")
                    raw.produce("t", b"v")
            (process.kill if kill else process.terminate)()
            lines = process.communicate(timeout=60)[1].splitlines()
        (told,) = (each for each in map(json.loads, lines) if each["event"] == "broker_started")
        assert ("recovered" in told) == recovered


def test_the_data_directory_of_a_project_is_no_log(tmp_path):
    """One level too high: a second log was written into it, while `up` ran."""
    (tmp_path / "mainstem.json").write_text('{"format":1}')
    done = run("--data", str(tmp_path), "--listen", "127.0.0.1:0")
    assert_one_line(done, "expected the directory of a log", f"its log is in {tmp_path / 'log'}")
    assert [path.name for path in tmp_path.iterdir()] == ["mainstem.json"]
