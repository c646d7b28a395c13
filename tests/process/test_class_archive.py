"""The archive of classes fits one Java and one class path, and is named by them."""

import os
import subprocess
from pathlib import Path

from mainstem.process.class_archive import archive_path, base_archive, make_archive, use_archive
from mainstem.process.java import Java, find_java
from mainstem.process.session import local_jars


def test_another_java_or_another_jar_is_another_archive(tmp_path, monkeypatch):
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    java = Java(tmp_path / "java", 17, "PATH")
    first = archive_path(java, [jar])
    assert first == archive_path(java, [jar])
    assert first.parent == tmp_path / "cache" / "classes"
    os.utime(jar, (1, 1))
    touched = archive_path(java, [jar])
    other = archive_path(Java(tmp_path / "other", 17, "PATH"), [jar])
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.2"')
    assert len({first, touched, other, archive_path(java, [jar]), archive_path(java, [])}) == 5


def test_a_session_takes_its_classes_from_the_archive(spark):
    """`make setup` has made it; a driver without it starts all the same."""
    bean = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    archive = archive_path(find_java(), local_jars(find_java()))
    options = list(bean.getInputArguments())
    assert (f"-XX:SharedArchiveFile={archive}" in options) == archive.is_file()


def test_a_java_without_an_archive_of_its_own_classes_gets_one_to_build_on(tmp_path):
    """The one in the wheel has none, and wrote no archive: where no other Java is, drivers started slowly."""
    real, home = find_java(), tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    wrapper = home / "bin" / "java"
    own = 'case "$*" in *SharedArchiveFile*) ;; *) set -- -XX:SharedArchiveFile=/nowhere "$@" ;; esac'
    wrapper.write_text(f'#!/bin/sh\n{own}\nexec {real.executable} "$@"\n')
    wrapper.chmod(0o755)
    java, archive = Java(home, real.version, "PATH"), tmp_path / "a.jsa"
    assert base_archive(real, archive) is None
    base = base_archive(java, archive)
    assert base == tmp_path / "a.base"
    made = base.stat().st_mtime_ns
    assert base_archive(java, archive) == base
    assert base.stat().st_mtime_ns == made
    subprocess.run([java.executable, *make_archive(archive, base), "-version"], check=True)
    subprocess.run([java.executable, "-Xshare:on", *use_archive(archive), "-version"], check=True)
    assert {path.name for path in tmp_path.iterdir()} == {"java", "a.jsa", "a.base"}


def test_options():
    assert use_archive(Path("/a.jsa"))[0] == "-XX:SharedArchiveFile=/a.jsa"
    assert make_archive(Path("/a.jsa"))[0] == "-XX:ArchiveClassesAtExit=/a.jsa"
