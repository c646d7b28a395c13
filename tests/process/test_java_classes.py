"""The Java of our own: any Java that runs Spark compiles it; its files are as Spark's own manager has them."""

import threading
from pathlib import Path

import pytest

from mainstem.process.java import find_java
from mainstem.process.java_classes import CHECKPOINT_FILES, NotCompiled, classes_path, java_classes
from mainstem.process.spark_home import spark_home

THEIRS = "org.apache.spark.sql.execution.streaming.checkpointing.{}BasedCheckpointFileManager"


def test_several_that_need_it_at_once_make_one_jar(tmp_path, monkeypatch):
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARK_HOME", str(spark_home()))
    java, made = find_java(), []
    threads = [threading.Thread(target=lambda: made.append(java_classes(java))) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made == [classes_path()] * 2
    assert [path.name for path in made[0].parent.iterdir()] == [made[0].name], "nothing is left beside it"
    before = made[0].stat().st_mtime_ns
    assert java_classes(java).stat().st_mtime_ns == before, "an archive of classes fits one file"


def test_a_cache_that_cannot_be_written_to_is_gone_without(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(spark_home()))
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "jars").mkdir(parents=True)
    (tmp_path / "cache" / "jars" / "mainstem").touch()
    with pytest.raises(NotCompiled, match=r"cache/jars/mainstem/\w+\.jar: cannot be written: File exists"):
        java_classes(find_java())
    assert java_classes(find_java(), tmp_path / "session").parent == tmp_path / "session"


def test_another_spark_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    for jar in (spark_home() / "jars").glob("*.jar"):
        if not jar.name.startswith("spark-sql"):
            (tmp_path / "spark" / "jars" / jar.name).symlink_to(jar)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    with pytest.raises(NotCompiled, match=r"LocalCheckpointFiles\.java: expected .* Spark in .*/spark takes it, found"):
        java_classes(find_java())
    assert not classes_path().exists()


@pytest.fixture
def managers(spark, tmp_path):
    """(ours, Spark's own), and a path of Hadoop's for a name."""
    jvm, configuration = spark._jvm, spark._jsc.hadoopConfiguration()

    def path(name):
        return jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/{name}")

    ours = jvm.mainstem.LocalCheckpointFiles(path("."), configuration)
    theirs = getattr(jvm, THEIRS.format("FileContext"))(path("."), configuration)
    return ours, theirs, path


def write(manager, path, text, *, may_replace=False):
    file = manager.createAtomic(path, may_replace)
    for number, value in enumerate(text.encode()):
        if number % 2:
            file.write(value)
        else:
            file.write(bytes([value]), 0, 1)
    file.close()


def read(manager, path):
    file = manager.open(path)
    try:
        return bytes(file.readAllBytes()).decode()
    finally:
        file.close()


@pytest.mark.spark
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1700])
def test_either_manager_reads_what_the_other_has_written_and_leaves_the_same_files(managers, tmp_path, size):
    ours, theirs, path = managers
    for name in "ab":
        (tmp_path / name).mkdir()
    text = "0123456789" * (size // 10) + "x" * (size % 10)
    write(ours, path("a/1"), text)
    write(theirs, path("b/1"), text)
    assert read(theirs, path("a/1")) == read(ours, path("b/1")) == text
    found = [{each.name: each.read_bytes() for each in (tmp_path / name).iterdir()} for name in "ab"]
    assert found[0].keys() == {"1", ".1.crc"}
    assert found[0] == found[1]
    write(theirs, path("a/1"), "theirs", may_replace=True)
    write(ours, path("b/1"), "ours", may_replace=True)
    assert (read(ours, path("a/1")), read(theirs, path("b/1"))) == ("theirs", "ours")


@pytest.mark.spark
def test_checksums_are_those_of_the_file(spark, managers, tmp_path):
    """Of Spark's managers only this one looks at them."""
    from py4j.protocol import Py4JJavaError

    ours, _, path = managers
    looks = getattr(spark._jvm, THEIRS.format("FileSystem"))(path("."), spark._jsc.hadoopConfiguration())
    write(ours, path("1"), "x" * 1000)
    assert read(looks, path("1")) == "x" * 1000
    (tmp_path / "1").write_bytes(b"x" * 700 + b"y" + b"x" * 299)
    with pytest.raises(Py4JJavaError, match="Checksum error"):
        read(looks, path("1"))


@pytest.mark.spark
def test_a_file_is_there_whole_or_not_at_all_and_another_one_is_replaced_where_it_may_be(managers, tmp_path):
    from py4j.protocol import Py4JJavaError

    ours, _, path = managers
    begun = ours.createAtomic(path("1"), False)
    begun.write(b"begun", 0, 5)
    assert not ours.exists(path("1"))
    begun.cancel()
    begun.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Py4JJavaError, match=r"java\.nio\.file\.NoSuchFileException: .*/none/\.1\."):
        ours.createAtomic(path("none/1"), False)
    write(ours, path("1"), "first")
    with pytest.raises(Py4JJavaError, match=r"org\.apache\.hadoop\.fs\.FileAlreadyExistsException: .*/1: the file"):
        write(ours, path("1"), "second")
    assert (read(ours, path("1")), len(list(tmp_path.iterdir()))) == ("first", 2)
    write(ours, path("1"), "third", may_replace=True)
    assert (read(ours, path("1")), len(list(tmp_path.iterdir()))) == ("third", 2)


@pytest.mark.spark
def test_a_session_on_this_machine_has_it(spark):
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass") == CHECKPOINT_FILES
    assert Path(classes_path()).is_file()
