"""Environments with the same Spark share its jars, and with them the class archive."""

import shutil
from types import SimpleNamespace

import pytest

from mainstem.process import spark_home as module
from mainstem.process.shared_files import remove_unused
from mainstem.process.spark_home import spark_home

JARS = {"spark-core.jar": b"core", "scala.jar": b"scala library"}


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Makes an environment with Spark in it, and is in it from then on."""
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)

    def make(name, jars=JARS):
        own = tmp_path / name / "pyspark"
        (own / "jars").mkdir(parents=True)
        (own / "bin").mkdir()
        (own / "bin" / "spark-submit").write_text("#!/bin/sh\n")
        (own / "bin" / "spark-submit").chmod(0o755)
        lines = ["pyspark/__init__.py,,", "pyspark/bin/spark-submit,sha256=other,10"]
        for jar, data in jars.items():
            (own / "jars" / jar).write_bytes(data)
            lines.append(f"pyspark/jars/{jar},sha256=hash-of-{data.hex()},{len(data)}")
        (own / "jars" / "connect-repl").mkdir()
        (own / "jars" / "connect-repl" / "scala.jar").write_bytes(b"not on the class path")
        lines.append("pyspark/jars/connect-repl/scala.jar,sha256=other,21")
        monkeypatch.setattr(module, "_own", lambda: own)
        monkeypatch.setattr(module, "distribution", lambda _: SimpleNamespace(read_text=lambda _: "\n".join(lines)))
        return own

    return make


def test_the_jars_of_the_first_environment_serve_the_next_also_when_it_is_gone(environment, tmp_path):
    first = environment("first")
    home = spark_home()
    assert (home / "jars" / "scala.jar").samefile(first / "jars" / "scala.jar")
    assert (home / "bin" / "spark-submit").stat().st_mode & 0o100
    environment("second")
    assert spark_home() == home
    shutil.rmtree(tmp_path / "first")
    assert spark_home() == home
    assert (home / "jars" / "spark-core.jar").read_bytes() == b"core"
    (home / "jars" / "scala.jar").unlink()  # somebody makes room in the cache
    assert spark_home() == home
    assert (home / "jars" / "scala.jar").read_bytes() == b"scala library"


def test_other_jars_are_another_home_and_what_nobody_has_any_more_is_removed(environment, tmp_path):
    environment("first")
    old = spark_home()
    environment("second", JARS | {"scala.jar": b"scala 3"})
    new = spark_home()
    assert new != old
    remove_unused(new.parent)
    assert old.is_dir()
    shutil.rmtree(tmp_path / "first")
    remove_unused(new.parent)
    assert [path for path in new.parent.iterdir() if path.is_dir()] == [new]


def test_what_cannot_be_shared_is_used_where_it_is(environment, tmp_path, monkeypatch):
    own = environment("added")
    (own / "jars" / "driver-of-theirs.jar").write_bytes(b"x")
    assert spark_home() == own
    own = environment("edited")
    (own / "bin" / "spark-submit").write_text("#!/bin/bash\n")
    assert spark_home() == own
    own = environment("configured")
    (own / "conf").mkdir()
    assert spark_home() == own
    own = environment("elsewhere")
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("another file system")))
    assert spark_home() == own
    assert not any(path.is_dir() for path in (tmp_path / "cache" / "spark").iterdir())
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert str(spark_home()) == "/opt/spark"


def test_it_is_where_a_session_takes_its_jars_from(spark):
    bean = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    assert f"{spark_home()}/jars/" in bean.getClassPath()
