"""The house is as docs and style say: each module has its tests, each room says what it is."""

import ast
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import PACKAGE, ROOT, pyproject, tracked_files

WITHOUT_TWIN = {
    "broker/pending.py": "fields, and nothing that they do",
    "__main__.py": "starts the command line and nothing else; the wheel's check runs it",
}
"""Modules without a test file of their own, each with its reason."""

ROOMS = {
    "core": "The words",
    "records": "The record batch",
    "wire": "The Kafka protocol",
    "log": "KEEP:",
    "broker": "SHARE:",
    "client": "How every room below reaches the log",
    "web": "DOORS FOR PROGRAMS:",
    "registry": "AGREE:",
    "connect": "IN and OUT:",
    "process": "CHANGE:",
    "serve": "ANSWER:",
    "replicate": "AGREE ON STATE:",
    "audit": "PROVE:",
    "standalone": "The only place",
    "cli": "Doors for people",
    "dash": "A door for people",
}
"""Each room and how its sentence begins."""

MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def twin(module: str) -> Path:
    path = Path(module)
    return ROOT / "tests" / path.parent / f"test_{path.name}"


def test_every_module_has_its_test_file() -> None:
    """`src/mainstem/<room>/<module>.py` is tested by `tests/<room>/test_<module>.py`."""
    without = [name for name in MODULES if name not in WITHOUT_TWIN and not twin(name).is_file()]
    assert without == [], "write the missing test files, or name the module in WITHOUT_TWIN with its reason"


def test_every_test_is_run_by_make_test() -> None:
    """`make test` runs what the Makefile names, and `check`; a new directory would never be run."""
    command = ["make", "--no-print-directory", "--eval", "rooms: ; @echo '$(ROOMS)'", "rooms"]
    rooms = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    run = [place for room in (*rooms, "tests/checks") for place in ROOT.glob(room)]
    assert len(run) == len(set(run)), "a room is run twice"
    there = {ROOT / path for path in tracked_files() if path.parts[0] == "tests" and path.name.startswith("test_")}
    left_out = [str(path.relative_to(ROOT)) for path in there if not {path, *path.parents} & set(run)]
    assert left_out == [], "name them in ROOMS in the Makefile"
    without = [str(place) for place in run if not any(place in (path, *path.parents) for path in there)]
    assert without == [], "no test is there: leave it out of ROOMS"
    assert [room for room in rooms if not list(ROOT.glob(room))] == [], "it is not there: leave it out of ROOMS"


def test_the_exceptions_are_still_needed() -> None:
    assert [name for name in WITHOUT_TWIN if name not in MODULES or twin(name).exists()] == []


def test_every_room_is_known_and_in_the_import_rule() -> None:
    found = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == set(ROOMS)
    layers = pyproject()["tool"]["importlinter"]["contracts"][0]["layers"]
    ruled = {name.strip().removeprefix("mainstem.").strip("()") for layer in layers for name in layer.split("|")}
    assert found <= ruled


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_opens_with_its_sentence(room: str) -> None:
    path = PACKAGE / room / "__init__.py"
    sentence = ast.get_docstring(ast.parse(path.read_text())) if path.is_file() else ""
    assert (sentence or "").startswith(ROOMS[room]), f"{path}: expected '{ROOMS[room]} …', found {sentence!r}"


def test_every_package_of_a_room_says_what_it_is() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    silent = []
    for folder in folders:
        path = folder / "__init__.py"
        if not path.is_file() or not ast.get_docstring(ast.parse(path.read_text())):
            silent.append(folder.relative_to(ROOT).as_posix())
    assert silent == []
