"""The project whose run makes the class archive; `make setup` runs it for real."""

import json
import os
import shlex
import signal
import sys
import threading

import msgspec
import pytest

from mainstem.process import load_project
from mainstem.process.class_archive import make_archive
from mainstem.standalone import class_archive
from mainstem.standalone.config import load_config
from mainstem.standalone.supervisor import ChildSpec
from mainstem.standalone.up import Addresses


def test_the_small_project_uses_every_part_of_a_driver(tmp_path):
    options = shlex.join(make_archive(tmp_path / "a.jsa"))
    (tmp_path / "mainstem.toml").write_text(class_archive._SETTINGS.format(options=json.dumps(options)))
    (tmp_path / "visits.avsc").write_text(class_archive._SCHEMA)
    (tmp_path / "jobs.py").write_text(class_archive._JOBS)
    assert load_project(tmp_path, environment={}).order == ("pages", "hourly")
    config = load_config(tmp_path, {})
    assert config.spark.settings == {"spark.driver.extraJavaOptions": options}
    assert config.lakehouses.keys() == {"tables"}
    assert msgspec.json.decode(class_archive._SCHEMA)["name"] == "Visit"


def test_an_archive_that_is_there_is_left_alone_and_a_failed_run_says_so(tmp_path, monkeypatch, capsys):
    path = tmp_path / "classes" / "x.jsa"
    monkeypatch.setattr(class_archive, "archive_path", lambda *_: path)
    monkeypatch.setattr(class_archive, "_run_small_project", lambda scratch, written, base: None)
    with pytest.raises(class_archive.NotMade, match="wrote no class archive"):
        class_archive.ensure_archive()
    assert class_archive.main() == 1
    assert "wrote no class archive" in capsys.readouterr().err
    monkeypatch.setattr(class_archive, "_run_small_project", lambda scratch, written, base: written.write_bytes(b"x"))
    assert class_archive.ensure_archive()
    assert not class_archive.ensure_archive()
    assert path.read_bytes() == b"x"


def test_two_that_make_the_same_archive_are_not_in_each_others_way(tmp_path, monkeypatch):
    """They wrote to one file: the first to end put in its place what the other one had not written to its end."""
    path = tmp_path / "classes" / "x.jsa"
    monkeypatch.setattr(class_archive, "archive_path", lambda *_: path)
    at_the_same_time = []

    def first(scratch, written, base):
        written.write_bytes(b"first")
        monkeypatch.setattr(class_archive, "_run_small_project", second)
        class_archive.ensure_archive()
        assert path.read_bytes() == b"second"
        assert written.read_bytes() == b"first"

    def second(scratch, written, base):
        at_the_same_time.extend(path.parent.glob("*/*.jsa"))
        written.write_bytes(b"second")

    monkeypatch.setattr(class_archive, "_run_small_project", first)
    assert class_archive.ensure_archive()
    assert len(at_the_same_time) == 1
    assert path.read_bytes() == b"first"
    assert {left.name for left in path.parent.iterdir()} == {"x.jsa", "x.txt"}


def visit_until_stopped():
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(120)


@pytest.mark.parametrize(
    ("code", "stopped", "refused"),
    [(0, False, None), (3, False, "ended with exit code 3"), (0, True, "stopped before its end")],
)
def test_an_archive_counts_only_where_spark_has_ended_well(tmp_path, monkeypatch, code, stopped, refused):
    """A JVM that is killed while it writes leaves a part of it, which nobody would ever make anew."""
    path = tmp_path / "classes" / "x.jsa"
    monkeypatch.setenv("MAINSTEM_SINKS__REPLICA__URL", "of somebody's own project")  # the gateway refused it
    serve = "print('ready', flush=True); signal.sigwait([signal.SIGTERM])"
    begin = "import os, pathlib, signal, sys; assert 'MAINSTEM_SINKS__REPLICA__URL' not in os.environ; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"

    def specs(project, config, data, at, *, own_log):
        (option,) = [
            each for each in shlex.split(config.spark.settings["spark.driver.extraJavaOptions"]) if "=/" in each
        ]
        write = f"pathlib.Path({option.partition('=')[2]!r}).write_bytes(b'x')"
        ends = {"gateway": f"{begin}; {serve}", "spark": f"{begin}; {serve}; {write}; sys.exit({code})"}
        return [ChildSpec(name, (sys.executable, "-c", script)) for name, script in ends.items()]

    monkeypatch.setattr(class_archive, "archive_path", lambda *_: path)
    monkeypatch.setattr(class_archive, "child_specs", specs)
    monkeypatch.setattr(class_archive, "declare_topics", lambda *_: None)
    monkeypatch.setattr(class_archive, "_visit", lambda *_: stopped and visit_until_stopped())
    if refused:
        with pytest.raises(class_archive.NotMade, match=refused):
            class_archive.ensure_archive()
        assert list(path.parent.iterdir()) == []
    else:
        assert class_archive.ensure_archive()
        assert path.read_bytes() == b"x"
    assert "MAINSTEM_SINKS__REPLICA__URL" in os.environ


def test_archives_that_nothing_can_use_any_more_are_removed(tmp_path, monkeypatch):
    """Every clone left one of 220 MB behind; then two clones with the same Spark removed each other's."""
    classes = tmp_path / "classes"
    classes.mkdir()
    spark, java = class_archive.spark_home(), class_archive.find_java().home
    owners = {
        "spark-gone": [tmp_path / "gone", java], "java-gone": [tmp_path, tmp_path / "gone"], "replaced": [spark, java],
        "replaced-old": [spark], "elsewhere": [tmp_path, java], "elsewhere-old": [tmp_path],
        "other-java": [spark, tmp_path],
    }  # fmt: skip
    for name, named in owners.items():
        (classes / f"{name}.jsa").write_bytes(b"x")
        (classes / f"{name}.txt").write_text("\n".join(map(str, named)))
    (classes / "unknown.jsa").write_bytes(b"x")
    (classes / "unfinished-killed").mkdir()
    (classes / "unfinished-killed" / "x.jsa").touch()
    os.utime(classes / "unfinished-killed", (1, 1))
    (classes / "unfinished-of-now").mkdir()
    monkeypatch.setattr(class_archive, "archive_path", lambda *_: classes / "new.jsa")
    monkeypatch.setattr(class_archive, "_run_small_project", lambda scratch, written, base: written.write_bytes(b"x"))
    assert class_archive.ensure_archive()
    left = [f"{name}.{kind}" for name in ("new", "elsewhere", "elsewhere-old", "other-java") for kind in ("jsa", "txt")]
    assert {path.name for path in classes.iterdir()} == {"unfinished-of-now", *left}
    assert (classes / "new.txt").read_text().splitlines() == [str(spark), str(java)]


def test_a_gateway_that_takes_no_events_ends_the_run(tmp_path):
    """The supervisor tries again after any other OSError: `make setup` would go on for ever."""
    with pytest.raises(class_archive.NotMade, match="the gateway took no events"):
        class_archive._visit(Addresses("127.0.0.1:1", "127.0.0.1:1"), tmp_path)
