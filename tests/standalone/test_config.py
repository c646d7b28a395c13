from pathlib import Path

import pytest

from mainstem.client.connection import Security, load_security
from mainstem.connect.sinks.delta import LakehouseConfig
from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.core.config import BadSetting
from mainstem.process import load_project
from mainstem.process.splice import SpliceConfig
from mainstem.standalone.config import load_config, table_directories

FILE_SOURCE = '[sources.x]\ntype = "file"\npath = "a"\ntopic = "t"\n'
FULL = """
[project]
name = "p"
[broker]
port = 9999
[sources.access]
type = "file"
path = "a.log"
topic = "lines"
[sinks.lake]
type = "delta"
every = "5 seconds"
[sinks.copy]
type = "postgres"
source = "shop"
url = "postgresql://localhost/x"
"""


@pytest.fixture
def project(tmp_path):
    def write(text):
        (tmp_path / "mainstem.toml").write_text(text)
        return tmp_path

    return write


def test_each_table_goes_to_its_room(project):
    directory = project(FULL)
    config = load_config(directory, {})
    assert config.broker.port == 9999
    assert config.sources == {"access": FileSourceConfig(path=f"{directory}/a.log", topic="lines")}
    assert config.lakehouses == {"lake": LakehouseConfig(every="5 seconds")}
    assert config.connect_sinks == {"copy": PostgresReplicaConfig(source="shop", url="postgresql://localhost/x")}
    assert config.gateway.listen == "127.0.0.1:9600"


def test_the_environment_overrides_a_source(project):
    config = load_config(project(FULL), {"MAINSTEM_SOURCES__ACCESS__PATH": "/var/log/b.log"})
    assert config.sources["access"].path == "/var/log/b.log"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            FILE_SOURCE.replace("[sources.x]", "[sources.collector]"),
            r"\[sources.collector\]: the collector has that name",
        ),
        ("[brokre]\nport = 1\n", r"mainstem.toml: unknown table \[brokre\]"),
        ("[broker]\nprot = 1\n", r"mainstem.toml: \[broker\]: Object contains unknown field `prot`"),
        (
            '[sources.x]\ntype = "oracle"\n',
            r'\[sources.x\]: expected type = "file" or type = "postgres", found \'oracle\'',
        ),
        ('[sinks.x]\npath = "oracle"\n', r'\[sinks.x\]: expected type = "delta" or type = "postgres", found no type'),
        (
            '[security]\nmechanism = "PLAIN"\n',
            r"mainstem.toml: \[security\]: mechanism PLAIN has no effect with .*: set",
        ),
        ("[[sources]]\n", r"mainstem.toml: sources: expected tables \[sources.NAME\]"),
        ("sources = 5\n", r"mainstem.toml: sources: expected tables \[sources.NAME\]"),
        ("[[sinks]]\n", r"mainstem.toml: sinks: expected tables \[sinks.NAME\]"),
        ("[sinks]\nlake = 5\n", r"mainstem.toml: sinks.lake: expected tables \[sinks.NAME\]"),
        (FILE_SOURCE + "poll_ms = -1\n", r"\[sources.x\]: poll_ms: expected `int` >= 1, found -1"),
        (FILE_SOURCE + 'encoding = "utf-9"\n', r"\[sources.x\]: unknown encoding 'utf-9'"),
        (FILE_SOURCE + 'encoding = "hex"\n', r"\[sources.x\]: unknown encoding 'hex'"),
        (FILE_SOURCE.replace('"t"', '"a topic"'), r"\[sources.x\]: expected letters, .* found 'a topic'"),
        ("[gateway.collector]\nbody_bytes = -1\n", r"\[gateway\]: collector.body_bytes: expected `int` >= 1, found -1"),
        ("[broker]\nnum_partitions = -1\n", r"\[broker\]: num_partitions: expected `int` >= 1, found -1"),
        ('[sinks.x]\ntype = "delta"\ntopics = "["\n', r"\[sinks.x\]: topics = '\[': no regular expression"),
        (
            '[sinks.x]\ntype = "delta"\nevery = "often"\n',
            r"\[sinks.x\]: expected a number and a unit, .* found 'often'",
        ),
        ('[sinks.x]\ntype = "delta"\nevrey = "1"\n', r"\[sinks.x\]: Object contains unknown field `evrey`"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(project, text, says):
    with pytest.raises(BadSetting, match=says):
        load_config(project(text), {})


def test_an_unknown_table_of_the_environment_is_named_as_its_variable(project):
    with pytest.raises(BadSetting, match=r"^MAINSTEM_FOO__BAR: unknown table \[foo\]"):
        load_config(project(FULL), {"MAINSTEM_FOO__BAR": "1"})


def test_relative_paths_are_the_projects(project, monkeypatch):
    text = FULL.replace('every = "5 seconds"', 'path = "tables"')
    directory = project(text + '[security]\nprotocol = "SSL"\nca_file = "ca.pem"\n')
    monkeypatch.chdir(directory.parent)
    for path in (directory, Path(directory.name)):
        config = load_config(path, {})
        assert config.sources["access"].path == f"{directory}/a.log"
        assert config.lakehouses["lake"].path == f"{directory}/tables"
        assert config.security.ca_file == load_security(path, {}).ca_file == f"{directory}/ca.pem"
    assert load_config(project(text.replace('"a.log"', '"/var/a.log"')), {}).sources["access"].path == "/var/a.log"
    assert load_security(directory / "nowhere", {}) == Security()


def test_a_misspelt_table_gets_a_suggestion(project):
    with pytest.raises(BadSetting) as caught:
        load_config(project("[sorces.x]\n"), {})
    assert caught.value.hint == "did you mean sources?"


def test_a_view_of_a_splice_is_refused(project):
    """A token of a source waited for nothing there, and the answer was old."""
    view = '[splices.revenue]\njob = "hourly"\n[serve.answers]\nlisten = "127.0.0.1:0"\nviews.x = { kind = "sql", topics = ["a", "revenue"] }\n'
    with pytest.raises(BadSetting, match=r"\[serve.answers\]: view x: .* found the splice revenue$") as caught:
        load_config(project(view), {})
    assert "job hourly writes" in caught.value.hint


def test_two_files_of_one_topic_are_refused_where_one_may_state_its_end(project):
    """The end of one was stated for the topic: windows were closed, and the other's lines were late."""
    two = FILE_SOURCE + FILE_SOURCE.replace("[sources.x]", "[sources.y]")
    with pytest.raises(BadSetting, match=r"\[sources.x\] and \[sources.y\] write to the same topic, t: ") as caught:
        load_config(project(two), {})
    assert "end_marker = false" in caught.value.hint
    with pytest.raises(BadSetting, match="same topic"):
        load_config(project(two + "end_marker = false\n"), {})
    for good in (two.replace('"t"\n', '"t"\nend_marker = false\n'), two.replace('"t"', '"u"', 1)):
        assert sorted(load_config(project(good), {}).sources) == ["x", "y"]


def test_two_lakehouses_in_one_directory_are_refused_with_both_their_names(project, monkeypatch):
    two = '[sinks.lake]\ntype = "delta"\n[sinks.copy]\ntype = "delta"\n'
    directory = project(two)
    for text in (two, two + 'path = "data/../data/tables"\n'):
        with pytest.raises(BadSetting, match=r"\[sinks.lake\] and \[sinks.copy\] .* same directory, .*data/tables"):
            table_directories(load_config(project(text), {}), directory / "data")
    with monkeypatch.context() as where:  # what Spark is given in SQL must be absolute
        where.chdir(directory)
        assert table_directories(load_config(project('[sinks.lake]\ntype = "delta"\n'), {}), Path("data")) == {
            "lake": directory / "data" / "tables"
        }
    apart = load_config(project(two + 'path = "elsewhere"\n'), {})
    assert table_directories(apart, directory / "data") == {
        "lake": directory / "data" / "tables", "copy": directory / "elsewhere"
    }  # fmt: skip


def test_a_fault_of_the_environment_is_named_as_its_variable(project):
    good = project("")
    with pytest.raises(BadSetting, match=r"^MAINSTEM_BROKER__PRT: \[broker\]: .*unknown field `prt`"):
        load_config(good, {"MAINSTEM_BROKER__PRT": "1", "MAINSTEM_BROKER__NUM_PARTITIONS": "2"})
    with pytest.raises(BadSetting, match=r"^MAINSTEM_TOPICS__ORDERS__PARTITIONS: \[topics\.orders\]: "):
        load_project(good, environment={"MAINSTEM_TOPICS__ORDERS__PARTITIONS": "x"})
    with pytest.raises(BadSetting, match=r"mainstem\.toml: \[log\]: .*segmnt_bytes"):
        load_config(project("[log]\nsegmnt_bytes = 1\n"), {"MAINSTEM_BROKER__NUM_PARTITIONS": "2"})


def test_splices_need_a_connect_worker(project):
    config = load_config(project('[splices.totals]\njob = "hourly"\n'), {})
    assert (config.splices, config.connects) == ({"totals": SpliceConfig("hourly")}, True)
    with pytest.raises(BadSetting, match=r"\[splices.totals\]"):
        load_config(project("[splices.totals]\ntopic = 'x'\n"), {})
    assert not load_config(project(""), {}).connects
