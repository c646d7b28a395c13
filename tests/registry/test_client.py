import contextlib
import json
import pickle
import socket
import threading
import time
import urllib.parse
import uuid

import httpx
import pytest

from mainstem.registry import IncompatibleSchema, InvalidSchema, NotFound, Registry, RegistryUnavailable, avro
from tests.support.ports import free_port
from tests.support.subjects import take_any_schema


def order(*fields):
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


ID = {"name": "id", "type": "long"}


@pytest.fixture
def registry(registry_url):
    return Registry(registry_url)


@pytest.fixture
def subject():
    return f"client/{uuid.uuid4()}"


def test_register_and_read_back(registry, subject):
    schema_id = registry.register(subject, order(ID))
    assert json.loads(registry.schema(schema_id)) == json.loads(order(ID))
    latest = registry.latest(subject)
    assert (latest.id, latest.version) == (schema_id, 1)
    assert subject in registry.subjects()
    assert avro.decode(avro.encode(schema_id, registry.schema(schema_id), {"id": 1}), registry.schema) == {"id": 1}


def test_a_subject_that_was_deleted_for_good_is_registered_again(registry, subject):
    """A file source went on with the id from before: nobody could read what it put into the quarantine."""
    schema = order(ID, {"name": "of_its_own", "type": "long"})  # in no other subject, which would keep the id
    first = registry.register(subject, schema)
    path = f"{registry.url}/subjects/{urllib.parse.quote(subject, safe='')}"
    for query in ("", "?permanent=true"):
        httpx.delete(path + query).raise_for_status()
    second = registry.register(subject, schema)
    assert second != first
    assert Registry(registry.url).schema(second)


def test_a_proxy_is_not_asked_for_this_machine(registry, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    registry.patience_seconds = 0
    assert registry.subjects() is not None


def test_refusals_have_their_types(registry, subject):
    registry.register(subject, order(ID))
    narrower = order({"name": "id", "type": "int"})
    with pytest.raises(IncompatibleSchema) as error:
        registry.register(subject, narrower)
    (reason,) = error.value.reasons
    assert "TYPE_MISMATCH at /fields/0/type" in reason
    with pytest.raises(InvalidSchema) as invalid:
        registry.register(subject, order({"name": "id", "type": "lng"}))
    assert invalid.value.pointer == "/fields/0/type"
    with pytest.raises(NotFound):
        registry.latest("no such subject")
    with pytest.raises(NotFound):
        registry.schema(2_000_000_000)
    take_any_schema(registry, subject)
    assert registry.register(subject, narrower)


def test_it_travels_to_other_processes(registry, subject):
    schema_id = registry.register(subject, order(ID))
    assert pickle.loads(pickle.dumps(registry)).schema(schema_id) == registry.schema(schema_id)


def test_a_registry_that_is_down_is_asked_for_a_while_then_told():
    registry = Registry(f"http://127.0.0.1:{free_port()}", patience_seconds=0.3)
    started = time.monotonic()
    with pytest.raises(RegistryUnavailable, match="no answer"):
        registry.latest("s")
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\n{",
        b"SSH-2.0-x\r\n",
        b"",
    ],
)
def test_a_registry_that_ends_in_the_middle_of_its_answer_is_asked_again_then_told(start):
    asked = []

    def answer():
        while True:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(65536))
                    connection.sendall(start)
                continue
            return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RegistryUnavailable, match=f"^registry {url}: no answer: .+") as error:
            Registry(url, patience_seconds=0.2).latest("s")
        listener.shutdown(socket.SHUT_RDWR)
    assert len(asked) > 1
    assert "\n" not in str(error.value)
