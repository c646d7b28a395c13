import pytest

from mainstem.connect.sinks.delta import LakehouseConfig
from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.core.config import BadSetting
from mainstem.standalone.config import load_config

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
    config = load_config(project(FULL), {})
    assert config.broker.port == 9999
    assert config.sources == {"access": FileSourceConfig(path="a.log", topic="lines")}
    assert config.lakehouses == {"lake": LakehouseConfig(every="5 seconds")}
    assert config.connect_sinks == {"copy": PostgresReplicaConfig(source="shop", url="postgresql://localhost/x")}
    assert config.gateway.listen == "127.0.0.1:9600"


def test_the_environment_overrides_a_source(project):
    config = load_config(project(FULL), {"MAINSTEM_SOURCES__ACCESS__PATH": "/var/log/b.log"})
    assert config.sources["access"].path == "/var/log/b.log"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[brokre]\nport = 1\n", r"mainstem.toml: unknown table \[brokre\]"),
        ("[broker]\nprot = 1\n", r"mainstem.toml: \[broker\]: Object contains unknown field `prot`"),
        ('[sources.x]\ntype = "oracle"\n', r"\[sources.x\]: Invalid value 'oracle'"),
        ('[sinks.x]\ntype = "delta"\nevrey = "1"\n', r"\[sinks.x\]: Object contains unknown field `evrey`"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(project, text, says):
    with pytest.raises(BadSetting, match=says):
        load_config(project(text), {})


def test_a_misspelt_table_gets_a_suggestion(project):
    with pytest.raises(BadSetting) as caught:
        load_config(project("[sorces.x]\n"), {})
    assert caught.value.hint == "did you mean [sources]?"
