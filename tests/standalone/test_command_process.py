import json
import sys
import threading
from types import SimpleNamespace

import pytest

from mainstem import embedded
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_topic
from mainstem.standalone.command_process import CommandFailed, run_command


def run(words, tmp_path, *, tell=print, pause=lambda seconds: threading.Event().wait(seconds)):
    return run_command(words, tell=tell, pause=pause, directory=tmp_path)


def test_what_a_command_prints_comes_back(tmp_path):
    with embedded() as log:
        ensure_topic(Connection(log.bootstrap), "orders", 2)
        found = json.loads(run(["topic", "describe", "--bootstrap", log.bootstrap, "--json", "--", "orders"], tmp_path))
    assert "orders" in json.dumps(found)


def test_its_error_is_told_and_repeated_without_the_name(tmp_path):
    told = []
    with pytest.raises(CommandFailed, match=r"^--project nowhere: expected a directory with a mainstem.toml") as error:
        run(["status", "--project", "nowhere"], tmp_path, tell=told.append)
    assert "mainstem: " not in str(error.value)


def test_a_command_that_nobody_wants_any_more_is_ended(tmp_path):
    class NoMore(Exception):
        pass

    def pause(seconds):
        raise NoMore

    with embedded() as log:
        ensure_topic(Connection(log.bootstrap), "orders", 1)
        with pytest.raises(NoMore):
            run(["tail", "--bootstrap", log.bootstrap, "--", "orders"], tmp_path, pause=pause)


def test_what_a_command_has_done_when_it_is_given_up_is_done(tmp_path, monkeypatch):
    """It was said that nothing is changed, of a version that was asked for."""
    command, done = tmp_path / "mainstem", tmp_path / "done"
    text = f"import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen({str(done)!r}, 'w')\nprint('it is')\ntime.sleep(0.3)"
    command.write_text(f"#!{sys.executable}\n{text}\n")
    command.chmod(0o755)
    monkeypatch.setattr("mainstem.standalone.command_process.sys", SimpleNamespace(executable=str(command)))

    def pause(seconds):
        if done.exists():
            raise RuntimeError("it was given up")
        threading.Event().wait(seconds)

    assert run([], tmp_path, pause=pause) == "it is\n"
