import hashlib
import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mainstem.process import jars
from mainstem.process.jars import BadChecksum, BadLock, FetchFailed, Jar, fetch, read_lock


class Repository:
    """A Maven repository in a directory, which Ivy takes for `~/.m2`: real Ivy, no network."""

    def __init__(self, home: Path) -> None:
        self.root = home / ".m2" / "repository"

    def put(self, name: str, *, sha256: str = "") -> Jar:
        path = self.root / "org" / "example" / name / "1.0" / f"{name}-1.0.jar"
        path.parent.mkdir(parents=True)
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("name", name)
        return Jar("org.example", name, "1.0", sha256 or hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    home = tmp_path / "home"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={home}")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nobody listens there: the public repository is away
    for name in ("https_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return Repository(home)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def lock_file(path: Path, wanted: list[Jar]) -> Path:
    path.write_text("# a comment\n\n" + "".join(f"{jar} sha256:{jar.sha256}  # why\n" for jar in wanted))
    return path


def run_fetch(lock: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "mainstem.process.jars", str(lock)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_jars_are_fetched_in_one_run_and_then_need_no_repository(repository: Repository, cache: Path) -> None:
    wanted = [repository.put("one"), repository.put("two")]
    reported: list[tuple[int, int]] = []
    paths = fetch(wanted, report=lambda done, total, _: reported.append((done, total)))
    assert [path.name for path in paths] == ["one-1.0.jar", "two-1.0.jar"]
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths] == [jar.sha256 for jar in wanted]
    assert reported == [(0, 2), (1, 2), (2, 2)]
    repository.root.rename(repository.root.with_name("gone"))
    assert fetch(wanted, report=lambda *_: pytest.fail("nothing is missing")) == paths


def test_other_bytes_than_the_lock_names_are_refused_and_not_kept(repository: Repository, cache: Path) -> None:
    wrong = repository.put("one", sha256="0" * 64)
    with pytest.raises(BadChecksum, match=r"org\.example:one:1\.0: SHA-256 0{64} expected, found [0-9a-f]{64}"):
        fetch([wrong])
    assert list(cache.rglob("*.jar")) == []


def test_a_half_written_jar_is_fetched_again(repository: Repository, cache: Path) -> None:
    wanted = [repository.put("one"), repository.put("two")]
    one, two = fetch(wanted)
    whole = one.read_bytes()
    one.write_bytes(whole[:20])
    untouched = two.stat().st_mtime_ns
    assert fetch(wanted) == [one, two]
    assert one.read_bytes() == whole
    assert two.stat().st_mtime_ns == untouched


def test_what_could_not_be_fetched_is_named_in_one_line(repository: Repository, cache: Path) -> None:
    absent = Jar("org.example", "absent", "1.0", "0" * 64)
    with pytest.raises(FetchFailed, match=r"could not fetch org\.example:absent:1\.0 and 1 more: .*refused") as caught:
        fetch([absent, repository.put("one")])
    assert "run the same command again" in caught.value.hint
    assert "\n" not in str(caught.value)
    assert list(cache.rglob("*.jar")) == []  # Ivy retrieves nothing when it cannot resolve all
    assert list(cache.glob("fetch-*")) == []


def test_a_network_that_gives_nothing_is_not_waited_for(
    repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make setup` hung, and whoever else waited for the lock."""
    monkeypatch.setattr(jars, "SILENT_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(FetchFailed, match=r"could not fetch org\.example:absent:1\.0: no answer for 2 s"):
            fetch([Jar("org.example", "absent", "1.0", "0" * 64)])
    assert list(cache.glob("fetch-*")) == []


def test_two_processes_at_once_fetch_once(repository: Repository, cache: Path, tmp_path: Path) -> None:
    lock = lock_file(tmp_path / "a.lock", [repository.put("one"), repository.put("two")])
    both = [run_fetch(lock), run_fetch(lock)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [out for out, _ in said] == [f"a.lock: 2 jars in {cache / 'jars'}\n"] * 2
    assert sorted(err.count("fetching 2") for _, err in said) == [0, 1]


def test_a_killed_fetch_leaves_nothing_that_hinders_the_next(
    repository: Repository, cache: Path, tmp_path: Path
) -> None:
    wanted = [repository.put("one")]
    killed = run_fetch(lock_file(tmp_path / "a.lock", wanted))
    assert killed.stderr is not None
    assert "fetching" in killed.stderr.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    [path] = fetch(wanted)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted[0].sha256
    assert list(cache.glob("fetch-*")) == []


def test_a_bad_line_names_the_file_and_the_line(tmp_path: Path) -> None:
    lock = tmp_path / "bad.lock"
    lock.write_text("# fine\norg.example:one:1.0 sha256:abc\n")
    with pytest.raises(BadLock, match=r"bad\.lock:2: expected 'group:name:version sha256:"):
        read_lock(lock)
    with pytest.raises(BadLock, match=r"nowhere\.lock: No such file"):
        read_lock(tmp_path / "nowhere.lock")


def test_the_command_prints_one_line_and_the_next_step_for_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jars.main([str(tmp_path / "nowhere.lock")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'nowhere.lock'}: No such file or directory\n"


def test_the_lock_of_our_spark_sessions_names_each_jar_once() -> None:
    locked = read_lock(jars.SPARK_LOCK)
    assert len({(jar.group, jar.name) for jar in locked}) == len(locked)


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    master, terminal = os.openpty()
    with open(terminal, "w") as out:
        report = jars._progress(out)
        for done in range(3):
            report(done, 2, "one-1.0")
        shown = ""
        while "\n" not in shown:  # a terminal hands on what it has so far
            shown += os.read(master, 4096).decode()
    os.close(master)
    assert "[###############               ] 1/2 one-1.0" in shown
    assert shown.count("\n") == 1
