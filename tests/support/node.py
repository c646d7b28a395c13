"""A whole project under `mainstem up`, as a process."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request

from mainstem.client.connection import Connection
from mainstem.registry.reader import TypedReader
from tests.support.processes import start
from tests.support.waiting import wait_until


class Node:
    """A running `mainstem up`, called in `directory`; returns when everything runs, or says what it said.

    Raises:
        AssertionError: it ended before.
    """

    def __init__(self, project, data, *, directory=None, options=()):
        # -P: like the command, it does not import from the directory where it is called.
        command = [sys.executable, "-P", "-m", "mainstem", "up", str(project), "--data", str(data)]
        command += ["--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0", *options]
        follows = "[sources.access]" in (project / "mainstem.toml").read_text()
        access = {"MAINSTEM_SOURCES__ACCESS__PATH": str(project / "access.log")} if follows else {}
        self.data = data
        self.process = start(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env=os.environ | access,
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if " up: log " in line:
                break
        else:
            self.__exit__()
            raise AssertionError("".join(self.lines))
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind=None, *_):
        if self.process.poll() is None:  # the test has failed: leave nothing behind
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        if kind is not None:
            self._tell()

    def _tell(self):
        """What the processes said last: pytest shows it of a test that has failed."""
        print("".join(self.lines[-30:]))
        for path in sorted((self.data / "logs").glob("*")):
            if path.is_file():
                print(f"== {path.name}\n" + "".join(path.read_text(errors="replace").splitlines(keepends=True)[-40:]))

    @property
    def state(self):
        return json.loads((self.data / "up.json").read_text())

    def child(self, name):
        return next(child for child in self.state["children"] if child["name"] == name)

    def runs(self, name):
        return self.child(name)["state"] == "running"

    def values_of(self, topic):
        with TypedReader(Connection(self.state["bootstrap"]), topic) as reader:
            return [record.value for record in reader]

    def lines_of(self, topic):
        return [value["line"] for value in self.values_of(topic)]

    def post(self, path, events=None):
        """POST to the collector below `/v1/topics/`; its answer."""
        body = b"" if events is None else json.dumps(events).encode()
        request = urllib.request.Request(f"{self.state['gateway']}/v1/topics/{path}", data=body)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0


def wait_for(done, seconds=60):
    wait_until(done, "what is waited for", seconds=seconds)
