import httpx
import pytest

from mainstem import embedded
from mainstem.client.catalog import TopicEntry, read_catalog, retired_readers, topic_entries, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.errors import TopicMismatch
from mainstem.client.topics import CHANGELOG_SETTINGS, describe, describe_config
from mainstem.core import UserError
from mainstem.core.config import BadSetting
from mainstem.process import load_project
from mainstem.process.splice import splices_of
from mainstem.registry.client import Registry
from mainstem.standalone.config import load_config
from mainstem.standalone.declare import declare_topics, retire_node, retire_sink
from tests.standalone.project import ORDERS, write_project
from tests.support.gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def at():
    with embedded() as log, GatewayProcess(log.bootstrap) as gateway:
        yield Connection(log.bootstrap), gateway.url


def declared(directory, at, owner=None):
    connection, url = at
    owner = owner or str(directory)
    declare_topics(load_project(directory), load_config(directory, {}), connection, url, owner)


def test_topics_schemas_and_catalog_agree_with_the_project(at, tmp_path):
    connection, url = at
    directory = write_project(tmp_path / "p")
    for _ in range(2):  # what exists and agrees is left alone
        declared(directory, at)
        assert describe(connection, "orders").partitions == 2
        assert describe_config(connection, "orders")["retention.ms"] == "-1"
        entry = topic_entries(read_catalog(connection))["orders"]
        assert (entry.kind, entry.key, entry.subject) == ("stream", ("number",), "orders-value")
        assert Registry(url).latest("orders-value").version == 1


def test_the_collector_takes_no_events_for_what_a_source_writes(at, tmp_path):
    """It did for the log file of the example project, whose topic has a schema there."""
    connection, url = at
    declared(write_project(tmp_path / "p"), at)
    assert topic_entries(read_catalog(connection))["lines"].producer == "source:access"
    answer = httpx.post(f"{url}/v1/topics/lines/events", json=[{"line": "forged"}])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_an_input")
    assert httpx.post(f"{url}/v1/topics/orders/events", json=[{"number": 1, "amount": 2.5}]).status_code == 200


def test_a_topic_may_be_named_as_the_tables_of_a_source_are(at, tmp_path):
    """Of a source of a whole database only itself knows which tables there are."""
    connection, _ = at
    directory = write_project(tmp_path / "p")
    with (directory / "mainstem.toml").open("a") as file:
        file.write('[sources.base]\ntype = "postgres"\nurl = "postgresql://h/d"\n')
        for name in ("base.notes", "base.planes"):
            file.write(f'[topics."{name}"]\nschema = "orders.avsc"\n')
    write_catalog(connection, {"topic:base.planes": TopicEntry(producer="source:base")})
    declared(directory, at)
    entries = topic_entries(read_catalog(connection))
    assert (entries["base.notes"].producer, entries["base.planes"].producer) == (None, "source:base")
    write_catalog(connection, {"topic:base.planes": None})


def test_another_number_of_partitions_is_refused(at, tmp_path):
    directory = write_project(tmp_path / "p")
    declared(directory, at)
    settings = (directory / "mainstem.toml").read_text()
    (directory / "mainstem.toml").write_text(settings.replace("partitions = 2", "partitions = 3"))
    with pytest.raises(TopicMismatch, match="topic orders: expected 3 partitions, found 2"):
        declared(directory, at)


def test_a_setting_that_the_log_refuses_is_named_with_its_file(at, tmp_path):
    directory = write_project(tmp_path / "p")
    with (directory / "mainstem.toml").open("a") as file:
        file.write('[topics.wrong]\nconfig = { "retenshun.ms" = "1" }\n')
    with pytest.raises(BadSetting, match=rf"^{directory}/mainstem\.toml: \[topics\.wrong\]: .*retenshun\.ms"):
        declared(directory, at)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (ORDERS.replace('"long"', '"lnog"'), "/fields/0/type: unknown type 'lnog'"),
        (ORDERS.replace('"long"', '"string"'), ".*incompatible"),
        (b"\xff", "expected UTF-8, found byte 0xff at 0"),
        (None, "expected a file to read: No such file or directory"),
    ],
)
def test_a_wrong_schema_is_named_with_its_file_and_topic(at, tmp_path, schema, said):
    """It was a line without either, or a traceback."""
    connection, url = at
    directory = write_project(tmp_path / "p")
    declared(directory, at)
    project = load_project(directory)
    (directory / "orders.avsc").unlink()
    if schema is not None:
        (directory / "orders.avsc").write_bytes(schema if isinstance(schema, bytes) else schema.encode())
    with pytest.raises(BadSetting, match=rf"^{directory}/orders\.avsc: schema of topic orders: {said}"):
        declare_topics(project, load_config(directory, {}), connection, url, "")


def test_a_table_of_a_source_has_the_lag_of_a_changelog_whoever_makes_it_first(at, tmp_path):
    """The project declared it without one before its source came, and compaction took away what replicas needed."""
    connection, _ = at
    directory = write_project(tmp_path / "p")
    jobs = 'from mainstem.process import changelog, stream, topic\norders = topic("orders")\n'
    jobs += 'planes = changelog("db.planes", key="id")\n@stream(to="b")\ndef job(orders, planes):\n    return orders\n'
    (directory / "jobs.py").write_text(jobs)
    declared(directory, at)
    assert describe_config(connection, "db.planes").items() >= CHANGELOG_SETTINGS.items()


def test_a_sink_that_the_project_has_no_more_is_retired(at, tmp_path):
    """Of another project's nothing is known here."""
    connection, _ = at
    sinks = {f"sink:{name}": {"type": "delta", "pattern": "x"} for name in ("lake", "moved", "kept", "others")}
    write_catalog(connection, sinks)
    first, second = (write_project(tmp_path / name) for name in ("first", "second"))
    for directory, names in ((first, ("lake", "moved", "kept")), (second, ("moved", "others"))):
        add_sinks(directory, names)
        declared(directory, at)
    assert not retired_readers(read_catalog(connection))
    add_sinks(first, ["kept"])
    for _ in range(2):
        declared(first, at)
        declared(second, at)
        assert retired_readers(read_catalog(connection)) == {"lake"}


def test_projects_of_one_name_retire_only_sinks_of_their_own(at, tmp_path):
    """A project is called as its directory, and each of a/shop and b/shop retired those of the other at its start."""
    connection, _ = at
    sinks = {f"sink:{name}": {"type": "delta", "pattern": "x"} for name in ("a-1", "a-2", "b-1", "shared")}
    # As an earlier version wrote it.
    write_catalog(connection, sinks | {"project:shop": {"sinks": {"a-1": "b", "a-2": "b", "shared": "b"}}})
    before = retired_readers(read_catalog(connection))
    first, second = tmp_path / "a" / "shop", tmp_path / "b" / "shop"
    for directory in (first, second):
        directory.mkdir(parents=True)
    for _ in range(2):
        for directory, names in ((first, ["a-1", "a-2", "shared"]), (second, ["b-1", "shared"])):
            add_sinks(directory, names)
            declared(directory, at)
            assert retired_readers(read_catalog(connection)) == before
    add_sinks(first, ["a-1", "shared"])
    add_sinks(second, ["b-1"])
    declared(second, at)  # it was retired here, although the first one has it
    declared(first, at)
    assert retired_readers(read_catalog(connection)) == before | {"a-2"}
    catalog = read_catalog(connection)
    assert catalog[f"project:{first}"] == {"name": "shop", "sinks": ["a-1", "shared"]}
    assert catalog[f"project:{second}"] == {"name": "shop", "sinks": ["b-1"]}


def test_a_project_that_is_renamed_while_it_loses_its_sinks_retires_them(at, tmp_path):
    """Under its new name it was another one, that had never had any; the old one had them for ever."""
    connection, _ = at
    write_catalog(connection, {"sink:once": {"type": "delta", "pattern": "x"}})
    directory = write_project(tmp_path / "here")
    add_sinks(directory, ["once"])
    declared(directory, at, "an id")
    renamed = directory.rename(tmp_path / "there")
    add_sinks(renamed, [])
    declared(renamed, at, "an id")
    assert "once" in retired_readers(read_catalog(connection))
    assert "project:an id" not in read_catalog(connection)


def test_a_sink_of_a_project_that_is_gone_is_retired_by_hand_once(at, tmp_path):
    """What is left of that project in the log keeps no other one from retiring a sink of the same name."""
    connection, _ = at
    write_catalog(connection, {"sink:left": {"type": "delta", "pattern": "x"}})
    directory = write_project(tmp_path / "project")
    for owner in ("gone", "here"):
        add_sinks(directory, ["left"])
        declared(directory, at, owner)
    add_sinks(directory, [])
    declared(directory, at, "here")
    assert "left" not in retired_readers(read_catalog(connection))
    retire_sink(connection, "left", directory)
    assert "left" in retired_readers(read_catalog(connection))
    add_sinks(directory, ["left"])
    declared(directory, at, "here")
    write_catalog(connection, {"sink:left": {"type": "delta", "pattern": "x"}})  # as it does when it starts
    add_sinks(directory, [])
    declared(directory, at, "here")
    assert "left" in retired_readers(read_catalog(connection))


def add_sinks(directory, names):
    """The project's sinks are these now."""
    write_project(directory)
    settings = directory / "mainstem.toml"
    text = settings.read_text().replace('"small"', f'"{directory.name}"')
    tables = (f'[sinks.{name}]\ntype = "delta"\npath = "{name}"\n' for name in names)
    settings.write_text(text + "".join(tables))


def test_a_serving_node_that_no_project_has_any_more_is_forgotten(at, tmp_path):
    connection, _ = at
    directory = write_project(tmp_path / "p")
    settings = (directory / "mainstem.toml").read_text()
    view = 'views.o = { kind = "sql", topics = "orders" }\n'
    two = 'listen = ["127.0.0.1:9611", "127.0.0.1:9612"]\n'
    (directory / "mainstem.toml").write_text(f"{settings}\n[serve.a]\n{two}{view}\n[serve.b]\n{view}")
    declared(directory, at)
    write_catalog(connection, {f"node:{name}": {"views": {}} for name in ("a-1", "a-2", "b", "another")})
    (directory / "mainstem.toml").write_text(f"{settings}\n[serve.a]\n{view}")
    declared(directory, at)
    assert {key for key in read_catalog(connection) if key.startswith("node:")} == {"node:another"}


def test_a_serving_node_of_a_project_that_is_gone_is_retired_by_hand(at, tmp_path):
    connection, _ = at
    directory = write_project(tmp_path / "p")
    view = '[serve.a]\nviews.o = { kind = "sql", topics = "orders" }\n'
    with (directory / "mainstem.toml").open("a") as file:
        file.write(view)
    declared(directory, at, "gone")
    write_catalog(connection, {"node:a": {"views": {}}})
    with pytest.raises(UserError, match="node a is what"):
        retire_node(connection, "a", directory)
    with pytest.raises(UserError, match="node z: no such node"):
        retire_node(connection, "z", directory)
    retire_node(connection, "a", tmp_path / "nothing")
    catalog = read_catalog(connection)
    assert ("node:a" in catalog, catalog["project:gone"]["nodes"]) == (False, [])


def test_the_catalog_knows_the_splices_of_a_project(at, tmp_path):
    """A cutover of a stream waits for them."""
    connection, _ = at
    directory = write_project(tmp_path / "p")
    settings = (directory / "mainstem.toml").read_text()
    (directory / "mainstem.toml").write_text(settings + '[splices.totals]\njob = "hourly"\n')
    declared(directory, at, "spliced")
    assert splices_of(read_catalog(connection), "hourly") == ["totals"]
    assert splices_of(read_catalog(connection), "totals") == []
    (directory / "mainstem.toml").write_text(settings)
    declared(directory, at, "spliced")
    assert splices_of(read_catalog(connection), "hourly") == []
    (directory / "mainstem.toml").write_text(settings + '[splices.orders]\njob = "hourly"\n')
    with pytest.raises(BadSetting, match=r"\[splices.orders\]: the project has a topic of that name$"):
        declared(directory, at, "spliced")
