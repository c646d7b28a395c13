import json

import pytest
from click.testing import CliRunner

from mainstem import embedded
from mainstem.cli.commands import group
from mainstem.client.catalog import read_catalog, retired_readers, sinks_of, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics
from mainstem.core import UserError
from tests.support.commands import mainstem, the_line


def test_on_a_log_where_no_project_ran_there_is_no_such_sink():
    """It was "topic __mainstem.catalog: no such topic"."""
    with embedded() as log:
        line = the_line(mainstem("sink", "retire", "nosuch", "--bootstrap", log.bootstrap))
    assert line == "mainstem: sink nosuch: no such sink (there are: none yet)"


def test_a_sink_that_no_project_has_is_retired(cli_log, tmp_path):
    """The audit could never be complete again with one that was taken out before projects listed their sinks."""
    connection = Connection(cli_log)
    ensure_internal_topics(connection)
    sinks = {f"sink:{name}": {"type": "delta", "pattern": "x"} for name in ("old", "lake", "kept")}
    write_catalog(connection, sinks)
    (tmp_path / "mainstem.toml").write_text('[project]\njobs = []\n[sinks.lake]\ntype = "delta"\n')
    options = ["--bootstrap", cli_log, "--project", str(tmp_path)]

    def retire(name, *more):
        return CliRunner().invoke(group, ["sink", "retire", name, *options, *more], catch_exceptions=False)

    assert retire("old").stdout == "sink old: retired; what it has written stays\n"
    assert json.loads(retire("old", "--json").stdout) == {"sink": "old"}
    for as_json, told in ((["--json"], '{"node": "n"}'), ([], "node n: retired; what it has written stays")):
        write_catalog(connection, {"node:n": {"views": {}}})
        assert retire("n", "--node", *as_json).stdout.replace(" ", "").replace("\n", "") == told.replace(" ", "")
        assert "node:n" not in read_catalog(connection)
    assert retired_readers(read_catalog(connection)) == {"old"}
    with pytest.raises(UserError, match=rf"^sink lake is what {tmp_path}/mainstem\.toml asks for$"):
        retire("lake")
    with pytest.raises(UserError, match=r"^sink lakes: no such sink$") as refused:
        retire("lakes")
    assert refused.value.hint == "there are: kept, lake, old"
    assert sorted(sinks_of(read_catalog(connection))) == ["kept", "lake"]
