"""The REST API over a real socket and a real log; the last test is Confluent's own client."""

import asyncio
import json
import uuid

import httpx
import pytest
from starlette.applications import Starlette

from mainstem.client.append import append
from mainstem.client.errors import UnknownTopic
from mainstem.client.internal import SCHEMAS
from mainstem.registry import app
from mainstem.registry.app import routes
from mainstem.registry.records import SchemaValue, schema_key, schema_value
from tests.support.waiting import wait_until

JSON = "application/vnd.schemaregistry.v1+json"


def order(*fields):
    return {"schema": json.dumps({"type": "record", "name": "Order", "fields": list(fields)})}


ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": "string"}


@pytest.fixture(scope="module")
def api(registry_url):
    with httpx.Client(base_url=registry_url, headers={"Accept": JSON, "Content-Type": JSON}) as client:
        yield client


@pytest.fixture
def subject():
    return f"test/{uuid.uuid4()} value"


@pytest.fixture
def path(subject):
    return "/subjects/" + subject.replace("/", "%2F")


def test_a_schema_is_registered_looked_up_and_read(api, subject, path):
    answer = api.post(f"{path}/versions", json=order(ID))
    assert (answer.status_code, answer.headers["content-type"]) == (200, JSON)
    schema_id = answer.json()["id"]
    found = api.post(path, json=order(ID)).json()
    assert (found["subject"], found["version"], found["id"]) == (subject, 1, schema_id)
    assert api.get(f"{path}/versions").json() == [1]
    assert json.loads(api.get(f"{path}/versions/latest").json()["schema"]) == json.loads(order(ID)["schema"])
    assert api.get(f"{path}/versions/1/schema").json() == json.loads(order(ID)["schema"])
    assert json.loads(api.get(f"/schemas/ids/{schema_id}").json()["schema"])["name"] == "Order"
    assert {"subject": subject, "version": 1} in api.get(f"/schemas/ids/{schema_id}/versions").json()
    assert subject in api.get(f"/schemas/ids/{schema_id}/subjects").json()
    assert subject in api.get("/subjects").json()
    assert api.get("/subjects?subjectPrefix=test/&limit=1").json() != []
    guid = found["guid"]
    assert api.get(f"/schemas/guids/{guid}").json()["schema"] == found["schema"]
    assert api.get(f"/schemas/guids/{guid}/ids").json() == [{"context": ".", "id": schema_id}]


def test_metadata_without_an_object_of_properties_is_refused_and_what_is_there_is_passed_over(
    api, subject, path, log_connection
):
    """It was taken, and then each question by metadata was a bare status 500."""
    asked = f"{path}/metadata?key=a&value=b"
    answer = api.post(f"{path}/versions", json={**order(ID), "metadata": {"properties": ["a"]}})
    assert (answer.status_code, answer.json()["error_code"]) == (422, 422)
    assert answer.json()["message"] == '/metadata/properties: expected an object, found ["a"]'
    api.post(f"{path}/versions", json={**order(ID), "metadata": {"properties": {"a": "b"}}})
    value = SchemaValue(subject, 2, 1_000_000, order(ID)["schema"], metadata={"properties": ["a"]})
    append(log_connection, SCHEMAS, [(schema_key(subject, 2), schema_value(value))])
    wait_until(lambda: api.get(f"{path}/versions/2").status_code == 200, "the registry has read its topic")
    assert api.get(asked).json()["version"] == 1


def test_compatibility_is_answered_with_reasons(api, path):
    assert api.post(f"/compatibility{path}/versions/latest", json=order(ID)).json() == {"is_compatible": True}
    api.post(f"{path}/versions", json=order(ID))
    answer = api.post(f"/compatibility{path}/versions/latest?verbose=true", json=order(ID, NOTE)).json()
    assert answer["is_compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1: the field 'note' has no default" in answer["messages"][0]
    assert api.post(f"/compatibility{path}/versions", json=order(ID, NOTE)).json() == {"is_compatible": False}
    refused = api.post(f"{path}/versions", json=order(ID, NOTE))
    assert (refused.status_code, refused.json()["error_code"]) == (409, 409)
    assert "/fields/1" in refused.json()["message"]
    wrong = api.post(f"/compatibility{path}/versions/1?verbose=true", json={"schema": '"strng"'}).json()
    assert wrong == {
        "is_compatible": False,
        "messages": ["/: unknown type 'strng' (named types defined before it: none)"],
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/subjects/none/versions", None, 404, 40401),
        ("GET", "/subjects/none/versions/1", None, 404, 40401),
        ("GET", "/subjects/none/versions/zero", None, 422, 42202),
        ("GET", "/subjects/none/versions/²", None, 422, 42202),
        ("GET", "/subjects/none/versions/" + "9" * 5000, None, 422, 42202),
        ("GET", "/subjects/none/versions/0", None, 422, 42202),
        ("GET", "/schemas/ids/2000000000", None, 404, 40403),
        ("GET", "/schemas/ids/" + "9" * 5000, None, 404, 40403),
        ("GET", "/schemas/ids/²/schema", None, 404, 40403),
        ("POST", "/subjects/none/versions", {"schema": "{"}, 422, 42201),
        ("POST", "/subjects/none/versions", {"schema": "x", "schemaType": "PROTOBUF"}, 422, 42201),
        ("POST", "/subjects/none/versions", {"scheme": "x"}, 422, 422),
        ("PUT", "/config/none", {"compatibility": "SOME"}, 422, 42203),
        ("GET", "/config/none", None, 404, 40408),
        ("PUT", "/mode/none", {"mode": "SOME"}, 422, 42204),
        ("GET", "/mode/none", None, 404, 40409),
        ("DELETE", "/subjects/none", None, 404, 40401),
        ("POST", "/subjects/none/versions", {"schema": "x" * 2_000_000}, 422, 42209),
    ],
)
def test_errors_have_confluents_codes(api, method, path, body, status, code):
    answer = api.request(method, path, json=body)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code)
    assert answer.json()["message"]


PATH = "/subjects/s/versions"
POST = {
    "type": "http",
    "method": "POST",
    "path": PATH,
    "raw_path": PATH.encode(),
    "root_path": "",
    "headers": [],
    "query_string": b"",
}


def posted(receive, store=None):
    """The status and the body that a POST gets whose own body comes from `receive`."""
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Starlette(routes=routes(store))(dict(POST), receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_a_client_that_goes_away_before_the_end_of_its_body_is_no_error():
    async def receive():
        return {"type": "http.disconnect"}

    assert posted(receive) == (499, b"")


def test_a_body_may_take_only_so_long(monkeypatch):
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)

    async def receive():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b" ", "more_body": True}

    status, body = posted(receive)
    assert (status, json.loads(body)["error_code"]) == (408, 408)
    assert json.loads(body)["message"].endswith(
        " bytes of the body came in 0.05 s, and not its end (send less at once)"
    )


def test_bodies_that_do_not_end_hold_no_more_than_the_limit_together(monkeypatch):
    """Each of any number of clients held up to a megabyte for half a minute."""
    monkeypatch.setattr(app, "BODIES_BYTES", 50_000)

    async def scenario():
        statuses, refused = [], asyncio.Event()
        application = Starlette(routes=routes(None))

        async def post():
            parts = iter([b" " * 20_000])

            async def receive():
                part = next(parts, None) or await asyncio.Event().wait()
                return {"type": "http.request", "body": part, "more_body": True}

            async def send(message):
                if "status" in message:
                    statuses.append(message["status"])
                    if len(statuses) == 8:
                        refused.set()

            await application(dict(POST), receive, send)

        posts = [asyncio.ensure_future(post()) for _ in range(10)]
        await asyncio.wait_for(refused.wait(), 20)
        for each in posts:
            each.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        return statuses

    assert asyncio.run(scenario()) == [429] * 8


def test_a_schema_that_the_log_does_not_take_is_refused_with_the_reason(api, path):
    """A body just below our limit makes a record above the topic's:
    it was a bare status 500, which clients sent again.
    """
    schema = json.dumps({"type": "record", "name": "Order", "fields": [], "doc": "%s"})
    length = app.BODY_LIMIT - len(json.dumps({"schema": schema})) + 2
    body = json.dumps({"schema": schema % ("x" * length)})
    assert len(body) == app.BODY_LIMIT
    answer = api.post(f"{path}/versions", content=body)
    assert (answer.status_code, answer.json()["error_code"]) == (422, 422), answer.text
    assert answer.json()["message"].endswith("(the topic's settings do not allow this record)")


def test_a_lost_topic_is_told_in_json():
    class Lost:
        async def write(self, decide):
            raise UnknownTopic("_schemas: no such topic", hint="start the gateway again")

    async def receive():
        return {"type": "http.request", "body": b'{"schema": "x"}'}

    status, body = posted(receive, Lost())
    told = {"error_code": 50001, "message": "_schemas: no such topic (start the gateway again)"}
    assert (status, json.loads(body)) == (500, told)


def test_settings_modes_and_deletion(api, subject, path):
    config, mode = path.replace("/subjects", "/config"), path.replace("/subjects", "/mode")
    assert api.get("/config").json() == {"compatibilityLevel": "BACKWARD"}
    assert api.put(config, json={"compatibility": "FULL"}).json() == {"compatibility": "FULL"}
    assert api.get(config).json() == {"compatibilityLevel": "FULL"}
    assert api.delete(config).json() == {"compatibilityLevel": "FULL"}
    assert api.get(f"{config}?defaultToGlobal=true").json() == {"compatibilityLevel": "BACKWARD"}
    api.post(f"{path}/versions", json=order(ID))
    assert api.put(mode, json={"mode": "READONLY"}).json() == {"mode": "READONLY"}
    assert api.post(f"{path}/versions", json=order(ID, NOTE)).json()["error_code"] == 42205
    assert api.delete(mode).json() == {"mode": "READONLY"}
    assert api.delete(f"{path}/versions/1").json() == 1
    assert api.get(f"{path}/versions").json()["error_code"] == 40401
    assert api.get(f"{path}/versions?deleted=true").json() == [1]
    assert api.delete(f"{path}?permanent=true").json() == [1]
    assert subject not in api.get("/subjects?deleted=true").json()


def test_what_clients_ask_on_the_way(api):
    assert api.get("/schemas/types").json() == ["AVRO"]
    assert api.get("/contexts").json() == ["."]
    assert api.get("/mode").json() == {"mode": "READWRITE"}
    assert api.get("/").json() == {}
    assert api.get("/v1/metadata/version").json()["version"].startswith("mainstem")


def test_confluents_own_client_works_unchanged(registry_url, log_connection):
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from confluent_kafka.serialization import MessageField, SerializationContext

    from mainstem.client.topics import ensure_topic

    topic = f"confluent-{uuid.uuid4()}"
    ensure_topic(log_connection, topic, 1)
    text = json.dumps(
        {"type": "record", "name": "Order", "fields": [ID, {"name": "n", "type": ["null", "int"], "default": None}]},
        indent=2,
    )
    row = {"id": 7, "n": None}
    with SchemaRegistryClient({"url": registry_url}) as client:
        context = SerializationContext(topic, MessageField.VALUE)
        producer = Producer(log_connection.confluent())
        producer.produce(topic, AvroSerializer(client, text)(row, context))
        assert producer.flush(30) == 0
        consumer = Consumer(log_connection.confluent(group_id=topic, auto_offset_reset="earliest"))
        consumer.subscribe([topic])
        message = consumer.poll(30)
        consumer.close()
        assert AvroDeserializer(client)(message.value(), context) == row

        subject = f"{topic}-value"
        assert subject in client.get_subjects()
        latest = client.get_latest_version(subject)
        assert (latest.version, client.get_versions(subject)) == (1, [1])
        assert client.get_schema(latest.schema_id).schema_type == "AVRO"
        assert client.lookup_schema(subject, Schema(text, "AVRO")).schema_id == latest.schema_id
        narrower = Schema(
            json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}), "AVRO"
        )
        assert client.test_compatibility(subject, narrower) is False
        with pytest.raises(SchemaRegistryError) as error:
            client.register_schema(subject, narrower)
        assert error.value.http_status_code == 409
        client.set_compatibility(subject, level="NONE")
        assert client.get_compatibility(subject) == "NONE"
        client.register_schema(subject, narrower)
        user = Schema(
            '{"type":"record","name":"U","fields":[{"name":"o","type":"Order"}]}',
            "AVRO",
            [SchemaReference("Order", subject, 2)],
        )
        client.register_schema(f"{topic}-user", user)
        assert client.get_referenced_by(subject, 2) == [client.get_latest_version(f"{topic}-user").schema_id]
        assert client.get_contexts() == ["."]
        assert client.get_schema_types() == ["AVRO"]
        assert client.get_global_mode() == "READWRITE"
        client.delete_subject(f"{topic}-user")
        client.delete_subject(f"{topic}-user", permanent=True)
        assert client.delete_version(subject, 1) == 1
        assert client.get_versions(subject) == [2]


@pytest.mark.parametrize("level", [[], {}, 7, True])
def test_a_level_that_is_no_text_is_refused(api, path, level):
    answer = api.put("/config" + path.removeprefix("/subjects"), json={"compatibility": level})
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42203)
    assert "Invalid compatibility level" in answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "where"),
    [("PUT", "/config"), ("PUT", "/mode"), ("POST", "/subjects/deep/versions"), ("POST", "/subjects/deep")],
)
def test_a_body_that_is_nested_too_deeply_is_refused(api, method, where):
    deep = "[" * 100_000 + "]" * 100_000
    answer = api.request(method, where, content=f'{{"compatibility": {deep}, "mode": {deep}, "schema": {deep}}}')
    assert answer.status_code == 422
    assert "nested too deeply" in answer.json()["message"] or "Expected `str`" in answer.json()["message"]


@pytest.mark.parametrize("depth", [300, 900, 20_000])
def test_a_schema_that_is_nested_too_deeply_is_refused(api, depth):
    text = '{"type": "array", "items": ' * depth + '"int"' + "}" * depth
    for where in ("/subjects/deep/versions", "/compatibility/subjects/deep/versions/latest"):
        answer = api.post(where, json={"schema": text})
        assert answer.status_code == 422
