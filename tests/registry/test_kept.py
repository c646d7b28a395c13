import msgspec
import pytest
from structlog.testing import capture_logs

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.topics import ensure_internal_topics
from mainstem.registry.errors import NotFound
from mainstem.registry.kept import KeptSchemas


def version(number, schema_id, *, deleted=False):
    key = {"keytype": "SCHEMA", "subject": "t-value", "version": number, "magic": 1}
    value = {"subject": "t-value", "version": number, "id": schema_id, "schema": f'"{number}"', "deleted": deleted}
    return msgspec.json.encode(key), msgspec.json.encode(value)


STRANGE = [
    (b'{"keytype":"NOOP","magic":0}', b'{"max_id":"5"}'),
    (b'{"keytype":"DELETE_SUBJECT","subject":"t-value","magic":0}', b'{"version":"1"}'),
    (b'{"keytype":"MODE","subject":"t-value","magic":0}', b'{"mode":[]}'),
]


def test_a_log_tells_its_schemas_where_no_registry_is_up():
    with embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_internal_topics(connection)
        with pytest.raises(NotFound):
            KeptSchemas(connection).latest("t-value")
        append(connection, SCHEMAS, [version(1, 7), version(2, 8), version(3, 9), (b"x", b"x")])
        append(connection, SCHEMAS, [version(3, 9, deleted=True), *STRANGE])
        with capture_logs() as logs:
            kept = KeptSchemas(connection)
    assert [each["event"] for each in logs] == ["registry_record_unreadable"] * (1 + len(STRANGE))
    latest = kept.latest("t-value")
    assert (latest.version, latest.id, latest.schema) == (2, 8, '"2"')
    assert kept.version("t-value", 1).id == 7
    assert kept.schema(9) == '"3"'  # records still carry it
    assert kept.texts("t-value") == {'"1"', '"2"', '"3"'}
    assert kept.texts("none") == set()
    with pytest.raises(NotFound):
        kept.version("t-value", 4)
