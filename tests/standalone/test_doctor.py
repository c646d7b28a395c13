from mainstem.standalone.doctor import EXTRAS, examine, sync_milliseconds


def test_everything_is_looked_at(tmp_path):
    findings = examine(tmp_path / "not there yet")
    said = " ".join(finding.what for finding in findings)
    for word in ("Python", "Java", "jars", "disk", "fdatasync", "open files", "port 9092", "port 9600", *EXTRAS):
        assert word in said
    assert {finding.verdict for finding in findings} <= {"ok", "warn", "bad"}


def test_a_missing_java_is_bad_and_says_what_to_do(tmp_path, monkeypatch):
    from mainstem.process.java import NoJava

    def nothing():
        raise NoJava("no Java found", hint="install one")

    monkeypatch.setattr("mainstem.process.java.find_java", nothing)
    (java,) = [finding for finding in examine(tmp_path) if "Java" in finding.what]
    assert (java.verdict, java.found) == ("bad", "no Java found (install one)")


def test_a_durable_write_takes_time(tmp_path):
    assert sync_milliseconds(tmp_path, times=3) > 0
