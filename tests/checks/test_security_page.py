"""docs/security.md: its files and commands, run in their order."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.broker.config import BrokerConfig
from tests.support import kafka_tools, processes
from tests.support.ports import free_ports
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
BLOCK = re.compile(r"(?:`([\w.]+)`:\n\n)?```(\w+)\n(.*?)```", re.DOTALL)


def words(line: str) -> tuple[dict[str, str], list[str]]:
    """The variables before a command, and the command."""
    command = shlex.split(line)
    variables = {}
    while "=" in command[0]:
        name, _, value = command.pop(0).partition("=")
        variables[name] = value
    return variables, command


@pytest.mark.timeout(300)
def test_the_page_is_run_as_it_stands(tmp_path: Path) -> None:
    inside, outside = free_ports(2)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name, kind, text in BLOCK.findall(PAGE):
            text = text.replace("9092", str(inside)).replace("9093", str(outside)).replace("0.0.0.0", "127.0.0.1")
            if kind != "sh":
                file = tmp_path / (name or "mainstem.toml")
                file.write_text((file.read_text() if kind == "toml" and file.exists() else "") + text)
                continue
            for line in text.splitlines():
                variables, command = words(line)
                run(command, variables, tmp_path, started)
    finally:
        for process in started:
            processes.stop(process)
            assert process.stdout is not None
            process.stdout.close()


def run(
    command: list[str], variables: dict[str, str], directory: Path, started: "list[subprocess.Popen[bytes]]"
) -> None:
    environment = os.environ | variables
    if command[:3] == ["mainstem", "log", "start"]:
        started.append(
            processes.start([sys.executable, "-m", *command], cwd=directory, stdout=subprocess.PIPE, env=environment)
        )
        stdout = started[-1].stdout
        assert stdout is not None
        assert stdout.readline().startswith(b"listening on")
        return
    if command[0].endswith(".sh"):
        command = kafka_tools.command(command[0].removesuffix(".sh"), *command[1:])
    elif command[0] == "mainstem":
        command = [sys.executable, "-m", *command]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)[-300:]}\n{done.stdout}{done.stderr}"


def test_the_settings_it_names_are_there() -> None:
    known = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", PAGE)) - {
        "anybody_may_connect",
        "nothing_is_encrypted",
        "no_users",
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "controller_mutation_rate",
        "connection_creation_rate",
    }
    assert known - set(BrokerConfig.__struct_fields__) == set()
