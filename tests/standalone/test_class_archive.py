"""The project whose run makes the class archive; `make setup` runs it for real."""

import json
import shlex

import msgspec
import pytest

from mainstem.process import load_project
from mainstem.process.class_archive import make_archive
from mainstem.standalone import class_archive
from mainstem.standalone.config import load_config
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
    monkeypatch.setattr(class_archive, "_run_small_project", lambda scratch, written: None)
    with pytest.raises(class_archive.NotMade, match="wrote no class archive"):
        class_archive.ensure_archive()
    assert class_archive.main() == 1
    assert "wrote no class archive" in capsys.readouterr().err
    monkeypatch.setattr(class_archive, "_run_small_project", lambda scratch, written: written.write_bytes(b"x"))
    assert class_archive.ensure_archive()
    assert not class_archive.ensure_archive()
    assert path.read_bytes() == b"x"


def test_archives_that_nothing_can_use_any_more_are_removed(tmp_path, monkeypatch):
    """Every clone left one of 220 MB behind."""
    classes = tmp_path / "classes"
    classes.mkdir()
    owners = {"gone": tmp_path / "gone", "replaced": class_archive.spark_home(), "elsewhere": tmp_path, "unknown": None}
    for name, owner in owners.items():
        (classes / f"{name}.jsa").write_bytes(b"x")
        if owner is not None:
            (classes / f"{name}.txt").write_text(str(owner))
    monkeypatch.setattr(class_archive, "archive_path", lambda *_: classes / "new.jsa")
    monkeypatch.setattr(class_archive, "_run_small_project", lambda scratch, written: written.write_bytes(b"x"))
    assert class_archive.ensure_archive()
    assert {path.name for path in classes.iterdir()} == {"elsewhere.jsa", "elsewhere.txt", "new.jsa", "new.txt"}


def test_a_gateway_that_takes_no_events_ends_the_run(tmp_path):
    """The supervisor tries again after any other OSError: `make setup` would go on for ever."""
    with pytest.raises(class_archive.NotMade, match="the gateway took no events"):
        class_archive._visit(Addresses("127.0.0.1:1", "127.0.0.1:1"), tmp_path)
