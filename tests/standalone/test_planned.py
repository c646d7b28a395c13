import os

import pytest

from mainstem.core.config import BadSetting
from mainstem.standalone.planned import _errors_aside, planned_now


def test_what_java_says_at_its_start_is_seen_only_where_it_does_not_start(tmp_path, capfd):
    with _errors_aside(tmp_path / "java"):
        os.write(2, b"using incubator modules\n")
    assert capfd.readouterr().err == ""

    def fail():
        with _errors_aside(tmp_path / "java"):
            os.write(2, b"no memory\n")
            raise ValueError("it did not start")

    with pytest.raises(ValueError, match="did not start"):
        fail()
    assert capfd.readouterr().err == "no memory\n"


def test_settings_are_refused_before_spark_is_started(tmp_path, monkeypatch):
    (tmp_path / "mainstem.toml").write_text("[sinks.lake]\ntype = 'delta'\nevry = '1 s'\n")
    monkeypatch.setattr("mainstem.process.session.start_session", None)
    with pytest.raises(BadSetting, match="evry"):
        planned_now(tmp_path, tmp_path / ".mainstem", None)


def test_settings_of_an_application_that_no_job_names_are_refused(tmp_path, monkeypatch):
    (tmp_path / "mainstem.toml").write_text("[project]\njobs = []\n[spark.applications.heavy]\ndriver_memory = '2g'\n")
    monkeypatch.setattr("mainstem.process.session.start_session", None)
    with pytest.raises(BadSetting, match=r"\[spark\.applications\.heavy\]: no job has application = 'heavy'"):
        planned_now(tmp_path, tmp_path / ".mainstem", None)
