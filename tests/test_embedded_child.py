"""`mainstem.embedded(child=True)`: a log in a process of its own, killed and started again."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mainstem
from mainstem.client.errors import BrokerUnavailable
from mainstem.embedded_child import NotStarted
from mainstem.wire.errors import Code
from tests.support.processes import alive
from tests.support.raw import RawClient
from tests.support.waiting import wait_until


def ended(process_id: int) -> bool:
    """It does nothing any more; whoever is its parent now may not have collected it."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_what_was_acknowledged_is_there_after_its_end_at_the_same_address(end):
    with mainstem.embedded(child=True) as log:
        bootstrap, process_id = log.bootstrap, log.process_id
        assert process_id != os.getpid()
        with RawClient(bootstrap) as raw:
            raw.create_topic("kept")
            assert raw.produce("kept", b"x") == 0
            getattr(log, end)()
        assert log.process_id == 0
        assert not alive(process_id)
        log.start()
        assert log.bootstrap == bootstrap
        with RawClient(bootstrap) as raw:
            assert raw.produce("kept", b"y") == 0
            asked = [{"name": "kept", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            assert raw.call(2, 5, replica_id=-1, topics=asked).topics[0].partitions[0].offset == 2
        process_id = log.process_id
    assert not alive(process_id)
    assert not log.data.exists()


def test_what_prevents_the_start_is_told_here(tmp_path):
    with mainstem.embedded(tmp_path), pytest.raises(NotStarted, match=str(tmp_path)):
        mainstem.embedded(tmp_path, child=True).__enter__()
    (tmp_path / "journal.0").unlink()
    (tmp_path / "journal.0").symlink_to("journal.0")  # as what may not be read: for root there is no such thing
    with pytest.raises(NotStarted, match=r"journal\.0"):
        mainstem.embedded(tmp_path, child=True).__enter__()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = mainstem.BrokerConfig(port=taken.getsockname()[1])
        with pytest.raises(NotStarted, match="in use"), mainstem.embedded(child=True, broker=broker):
            pass


def test_a_topic_is_not_waited_for_where_no_log_runs():
    with mainstem.embedded(child=True) as log:
        log.kill()
        with pytest.raises(BrokerUnavailable, match=f"^{log.bootstrap}: the log does not run$") as told:
            log.create_topic("late")
        assert told.value.hint == "start() it"
        log.start()
        log.create_topic("late")


def test_one_that_ended_by_itself_is_started_again():
    with mainstem.embedded(child=True) as log:
        os.kill(log.process_id, signal.SIGKILL)
        wait_until(lambda: log.process_id == 0, "its end is seen")
        with pytest.raises(BrokerUnavailable, match=r"the log does not run$"):
            log.create_topic("late")
        log.start()
        log.create_topic("late")


def test_one_whose_block_is_over_is_not_started_again():
    with mainstem.embedded(child=True) as log:
        pass
    with pytest.raises(NotStarted, match=f"^{log.bootstrap}: the log has ended$"):
        log.start()
    with pytest.raises(BrokerUnavailable, match=f"^{log.bootstrap}: the log has ended$"):
        log.create_topic("late")
    assert not log.data.exists()


def test_a_log_that_does_not_answer_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr("mainstem.embedded_log._ADMIN_SECONDS", 0.5)
    with mainstem.embedded(child=True) as log:
        os.kill(log.process_id, signal.SIGSTOP)
        try:
            with pytest.raises(BrokerUnavailable, match=f"^{log.bootstrap}: no answer within 0.5 s$"):
                log.create_topic("late")
        finally:
            os.kill(log.process_id, signal.SIGCONT)


def test_it_is_started_again_where_it_was_from_another_directory(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with mainstem.embedded("data", child=True) as log:
        log.create_topic("kept")
        log.kill()
        monkeypatch.chdir("other")
        log.start()
        with RawClient(log.bootstrap) as raw:
            assert raw.produce("kept", b"x") == 0
    assert list((tmp_path / "other").iterdir()) == []


def test_one_that_runs_is_not_started_twice():
    with mainstem.embedded(child=True) as log, pytest.raises(NotStarted, match=f"process {log.process_id} serves"):
        log.start()


def test_a_ctrl_c_is_for_the_program_which_still_needs_its_log(tmp_path):
    program = (
        "import mainstem, signal, sys\n"
        "from confluent_kafka import Producer\n"
        "with mainstem.embedded(child=True) as log:\n"
        "    producer = Producer(log.client)\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        signal.pause()\n"
        "    except KeyboardInterrupt:\n"
        "        producer.produce('t', b'last')\n"
        "        print(producer.flush(20), flush=True)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as terminal:
        assert terminal.stdout.readline() == "ready\n"
        os.killpg(terminal.pid, signal.SIGINT)
        assert terminal.stdout.read() == "0\n"


def test_files_of_the_working_directory_are_none_of_its_modules(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise SystemExit('not meant')")
    monkeypatch.chdir(tmp_path)
    with mainstem.embedded(child=True) as log:
        log.create_topic("t")


def test_it_ends_with_the_program_however_that_ends(tmp_path):
    program = (
        "import mainstem, pathlib, time\n"
        f"log = mainstem.embedded(pathlib.Path({str(tmp_path)!r}), child=True).__enter__()\n"
        "print(log.process_id, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        process_id = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: ended(process_id), "the log's process has ended")


def test_where_the_program_has_a_file_in_the_place_of_stderr_the_log_writes_into_none(tmp_path):
    """Some file of the log's own had the number there: what C libraries say would have been written into it."""
    program = (
        "import mainstem, os, sys\n"
        "mine = open(sys.argv[1], 'w')\n"
        "with mainstem.embedded(child=True) as log:\n"
        "    log.create_topic('t', config={'flush.messages': '1000'})\n"  # it warns
        "    mine.write(os.readlink(f'/proc/{log.process_id}/fd/2'))\n"
    )
    command = ["sh", "-c", 'exec "$1" -c "$2" "$3" 2>&-', "sh", sys.executable, program, str(tmp_path / "mine")]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "mine").read_text() == "/dev/null"


def test_it_ends_as_it_should_while_a_clients_expression_runs():
    """It was aborted, and a core was left where the system keeps them."""
    with mainstem.embedded(child=True, broker={"stop_timeout_ms": 100}) as log:
        process = log._child._process
        with RawClient(log.bootstrap) as raw, RawClient(log.bootstrap) as other:
            for number in range(20):
                named = {"transactional_id": str(number) + "xxy" * 2500, "transaction_timeout": 60_000}
                assert raw.call(22, 4, **named, producer_id=-1, producer_epoch=-1).error_code == 0
            filters = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
            slow = ".*x" + "[xy]" * 3000 + "z"  # a tenth of a second for each: the last one ends amid the end
            other.send(66, 2, **filters, transactional_id_pattern=slow)
            time.sleep(0.2)
            log.stop()
    assert process.returncode == 0


def test_where_the_disk_has_failed_it_ends_and_may_be_started_again():
    """It stayed, and refused what came: its program learned of that by the time-outs of its clients."""
    with mainstem.embedded(child=True) as log:
        process = log._child._process
        with RawClient(log.bootstrap) as raw:
            raw.create_topic("t")
            assert raw.produce("t", b"there") == 0
            unlimited = resource.RLIM_INFINITY
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, unlimited))  # no file goes beyond
            assert raw.produce("t", b"refused") == Code.kafka_storage_error
        assert process.wait(30) == 2
        assert log.process_id == 0
        log.start()
        with RawClient(log.bootstrap) as raw:
            asked = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            assert raw.call(2, 5, replica_id=-1, topics=asked).topics[0].partitions[0].offset == 1


def test_a_fork_knows_that_it_runs():
    """It is no child of the fork, which took that for its end."""
    with mainstem.embedded(child=True) as log:
        fork = os.fork()
        if fork == 0:
            try:
                os._exit(0 if log.process_id else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
        log.kill()
        assert log.process_id == 0
