"""The wheel that users install: what is in it, and that the bare log and its tools need nothing else."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import mainstem
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_topic
from tests.support.repository import PACKAGE, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(directory), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = directory.glob("*.whl")
    return built


def needed_by(name: str, seen: set[str]) -> set[str]:
    """The distributions that an installation of `name` without extras brings."""
    for text in metadata.requires(name) or []:
        required, _, marker = text.partition(";")
        if "extra ==" in marker or ("platform" in marker and "win32" in marker.lower()):
            continue
        dependency = canonicalize_name(re.split(r"[^A-Za-z0-9._-]", required.strip())[0])
        if dependency not in seen:
            try:
                metadata.distribution(dependency)
            except metadata.PackageNotFoundError:
                continue  # its marker excludes this Python
            seen.add(dependency)
            needed_by(dependency, seen)
    return seen


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and its plain dependencies.

    They are linked from here, by what they say they need: tests have no network, and pip keeps nothing that it could
    install them from. So this shows what is needed, not how long an index takes to give it.
    """
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    [site] = directory.glob("lib/python*/site-packages")
    for name in needed_by("mainstem", set()):
        files = metadata.files(name) or []
        for top in {path.parts[0] for path in files if path.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    return directory


def run(installed: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.defpath, "HOME": str(installed)}
    return subprocess.run(
        [str(installed / "bin" / command[0]), *command[1:]],
        check=False, capture_output=True, text=True, env=environment, cwd=installed, timeout=60,
    )  # fmt: skip


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"mainstem", next(top for top in tops if top.endswith(".dist-info"))}
    data = {"py.typed", "process/jars.lock", "process/LocalCheckpointFiles.java"}
    assert {f"mainstem/{name}" for name in data} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    modules = {f"mainstem/{path.relative_to(PACKAGE).as_posix()}" for path in PACKAGE.rglob("*.py")}
    assert modules <= names


def test_the_installed_command_answers(installed: Path) -> None:
    done = run(installed, "mainstem", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert metadata.version("mainstem") in done.stdout
    done = run(installed, "mainstem", "--help")
    assert done.returncode == 0, done.stderr
    assert "topic" in done.stdout
    assert "log" in done.stdout


def test_the_module_runs_as_the_command_does(installed: Path) -> None:
    done = run(installed, "python", "-m", "mainstem", "--version")
    assert done.returncode == 0, done.stderr


ROOMS_OF_THE_LOG = ("core", "records", "wire", "log", "broker", "client", "audit", "cli")


def test_the_log_and_its_tools_need_no_extra(installed: Path) -> None:
    """Every module of these rooms is imported where nothing of an extra is;
    one that needs one imports it when it is used.
    """
    paths = [path for room in ROOMS_OF_THE_LOG for path in (PACKAGE / room).rglob("*.py")]
    modules = sorted(".".join(("mainstem", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths)
    names = [module.removesuffix(".__init__") for module in modules if not module.endswith("__main__")]
    assert len(names) > 100
    code = (
        "import importlib, importlib.util, sys\n"
        f"for name in {names}: importlib.import_module(name)\n"
        f"print([name for name in {EXTRAS} if importlib.util.find_spec(name)])"
    )
    done = run(installed, "python", "-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


EXTRAS = (
    "deltalake",
    "duckdb",
    "fastavro",
    "httptools",
    "joserfc",
    "numpy",
    "pandas",
    "psycopg2",
    "pyarrow",
    "pyspark",
    "pytz",
    "rocksdict",
    "starlette",
    "tantivy",
    "uvicorn",
)
"""What the extras of pyproject.toml install, as it is imported."""


def test_the_log_runs_without_an_extra(installed: Path) -> None:
    program = [str(installed / "bin" / "mainstem"), "log", "start", "--data", str(installed / "data")]
    with subprocess.Popen(
        [*program, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.defpath, "HOME": str(installed)},
    ) as log:
        try:
            assert log.stdout is not None
            at = log.stdout.readline().strip().removeprefix("listening on ")
            for command in ("topic create t --partitions 2", "topic list", "audit"):
                done = run(installed, "mainstem", *command.split(), "--bootstrap", at)
                assert (done.returncode, done.stderr) == (0, "")
        finally:
            log.terminate()
    assert log.returncode == 0


@pytest.mark.parametrize(("command", "extra"), [("up .", "gateway"), ("plan .", "spark")])
def test_a_command_that_needs_an_extra_names_it(installed: Path, command: str, extra: str) -> None:
    (installed / "mainstem.toml").write_text("[project]\njobs = []\n")
    done = run(installed, "mainstem", *command.split())
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"pip install 'mainstem[{extra}]'" in line


def test_plain_values_are_read_without_an_extra_and_avro_names_the_one_it_needs(installed: Path) -> None:
    with mainstem.embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_topic(connection, "t", 1)
        append(connection, "t", [(None, b"a line"), (None, b'{"n":1}'), (None, b"\0\0\0\0\1\2")])
        tail = ("mainstem", "tail", "t", "--from", "earliest", "--no-follow", "--bootstrap", log.bootstrap)
        done = run(installed, *tail, "-n", "2")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == '0:0  -  "a line"\n0:1  -  {"n":1}\n'
        done = run(installed, *tail)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "fastavro: not installed (it comes with an extra: pip install 'mainstem[gateway]')" in line


@pytest.mark.parametrize("command", ["topic list", "job list", "status", "audit"])
def test_a_command_about_a_log_needs_no_extra(installed: Path, command: str) -> None:
    done = run(installed, "mainstem", *command.split(), "--bootstrap", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "127.0.0.1:1: no log answers" in line
