"""What Spark's Kubernetes client asks of an API server, answered: there is no Kubernetes in a test.

The pods that are asked for are recorded as they came. Each is then started as a process of this machine by the command
that the entry point of Spark's images has for an executor, with the variables of the pod; what an image, a volume or a
namespace would do is not shown by that.
"""

import copy
import json
import os
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mainstem.process.java import find_java
from mainstem.process.spark_home import spark_home
from tests.support.certificates import Authority
from tests.support.processes import start, stop

_BEGAN = "2026-01-01T00:00:00Z"
_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


class ApiServer:
    """Pods and config maps of any namespace; watches are held open, and say nothing: Spark lists its pods as well.

    Attributes:
        pods: those that were asked for, in their order, as they came.
        tokens: the `Authorization` headers that came.
    """

    def __init__(self, directory: Path) -> None:
        self.pods: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self._directory = directory
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}  # by namespace, kind and name
        self._processes: dict[str, Any] = {}
        self._lock = threading.RLock()
        self.closing = threading.Event()
        authority = Authority(directory)
        certificate, key = authority.issue("api")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.ca_file = authority.file
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        for process in self._processes.values():
            stop(process)

    @property
    def running(self) -> list[str]:
        """The names of the pods whose processes run."""
        return sorted(name for name, process in self._processes.items() if process.poll() is None)

    def create(self, namespace: str, kind: str, made: dict[str, Any]) -> dict[str, Any]:
        if kind == "pods":
            self.pods.append(copy.deepcopy(made))
        with self._lock:
            metadata = made["metadata"]
            metadata |= {"namespace": namespace, "uid": str(uuid.uuid4()), "resourceVersion": "1"}
            metadata["creationTimestamp"] = _BEGAN
            self._objects[namespace, kind, metadata["name"]] = made
            if kind == "pods":
                made["status"] = {"phase": "Running", "podIP": "127.0.0.1"}
                self._processes[metadata["name"]] = self._run(made)
        return made

    def find(self, namespace: str, kind: str, is_selected: Callable[[dict[str, str]], bool]) -> list[dict[str, Any]]:
        with self._lock:
            mine = [self._now(each) for (of, what, _), each in self._objects.items() if (of, what) == (namespace, kind)]
            return [each for each in mine if is_selected(each["metadata"].get("labels", {}))]

    def delete(self, namespace: str, kind: str, name: str) -> dict[str, Any] | None:
        with self._lock:
            process = self._processes.get(name)
            if kind == "pods" and process is not None:
                stop(process, seconds=5)
            return self._objects.pop((namespace, kind, name), None)

    def get(self, namespace: str, kind: str, name: str) -> dict[str, Any] | None:
        with self._lock:
            found = self._objects.get((namespace, kind, name))
            return found if found is None else self._now(found)

    def _now(self, made: dict[str, Any]) -> dict[str, Any]:
        """An object with what became of it: of a pod whose process has ended nobody would make another one."""
        process = self._processes.get(made["metadata"]["name"])
        code = None if process is None else process.poll()
        if code is None:
            return made
        (container,) = made["spec"]["containers"]
        ended = {"exitCode": code, "startedAt": _BEGAN, "finishedAt": _BEGAN}
        states = [{"name": container["name"], "state": {"terminated": ended}}]
        return made | {
            "status": made["status"] | {"phase": "Failed" if code else "Succeeded", "containerStatuses": states}
        }

    def _run(self, pod: dict[str, Any]) -> Any:
        """As `executor)` of the images' entry point, without an image."""
        (container,) = pod["spec"]["containers"]
        fields = {"metadata.name": pod["metadata"]["name"], "status.podIP": "127.0.0.1"}
        env = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        memory = env["SPARK_EXECUTOR_MEMORY"]
        options = [value for name, value in sorted(env.items()) if name.startswith("SPARK_JAVA_OPT_")]
        command = [str(find_java().executable), *options, f"-Xms{memory}", f"-Xmx{memory}"]
        command += ["-cp", f"{spark_home()}/jars/*", _BACKEND]
        command += ["--driver-url", env["SPARK_DRIVER_URL"], "--executor-id", env["SPARK_EXECUTOR_ID"]]
        command += ["--cores", env["SPARK_EXECUTOR_CORES"], "--app-id", env["SPARK_APPLICATION_ID"]]
        command += ["--hostname", env["SPARK_EXECUTOR_POD_IP"]]
        command += [
            "--resourceProfileId",
            env["SPARK_RESOURCE_PROFILE_ID"],
            "--podName",
            env["SPARK_EXECUTOR_POD_NAME"],
        ]
        place = self._directory / fields["metadata.name"]
        place.mkdir()
        env |= {"SPARK_LOCAL_DIRS": str(place), "SPARK_HOME": str(spark_home())}
        with (place / "log").open("wb") as log:
            return start(command, cwd=place, env=os.environ | env, stdout=log, stderr=log)


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            namespace, kind, name, query = self._asked()
            if name:
                found = server.get(namespace, kind, name)
                return self._answer(404 if found is None else 200, found or _status("Failure", 404))
            if query.get("watch") == ["true"]:
                if self.headers.get("Upgrade"):  # by WebSocket: the client then asks by plain HTTP
                    return self._answer(503, _status("Failure", 503))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                server.closing.wait()
                return None
            found = server.find(namespace, kind, _selected(query))
            return self._answer(
                200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": found}
            )

        def do_POST(self) -> None:
            namespace, kind, _, _ = self._asked()
            self._answer(201, server.create(namespace, kind, self._body()))

        def do_PATCH(self) -> None:
            namespace, kind, name, _ = self._asked()
            self._body()
            self._answer(200, server.get(namespace, kind, name) or _status("Failure", 404))

        def do_DELETE(self) -> None:
            namespace, kind, name, query = self._asked()
            self._body()
            names = (
                [name]
                if name
                else [each["metadata"]["name"] for each in server.find(namespace, kind, _selected(query))]
            )
            for each in names:
                server.delete(namespace, kind, each)
            self._answer(200, _status("Success", 200))

        def _asked(self) -> tuple[str, str, str, dict[str, list[str]]]:
            """Namespace, kind and name of `/api/v1/namespaces/NAMESPACE/KIND/NAME`."""
            server.tokens.add(self.headers.get("Authorization"))
            parts = urlsplit(self.path)
            words = [*parts.path.strip("/").split("/"), "", ""]
            named = words.index("namespaces") if "namespaces" in words else len(words)
            namespace, kind, name = [*words[named + 1 : named + 4], "", "", ""][:3]
            return namespace, kind, name, parse_qs(parts.query)

        def _body(self) -> Any:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return json.loads(text) if text else {}

        def _answer(self, code: int, document: Any) -> None:
            text = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler


def _selected(query: dict[str, list[str]]) -> Callable[[dict[str, str]], bool]:
    """Whether labels are those that a question selects: `a=b`, `a!=b`, `a` and `!a`, all of them."""
    terms = [each for each in ",".join(query.get("labelSelector", [])).split(",") if each]

    def holds(term: str, labels: dict[str, str]) -> bool:
        name, _, value = term.partition("=")
        if name.endswith("!"):
            return labels.get(name[:-1]) != value
        if "=" in term:
            return labels.get(name) == value
        return term in labels if not term.startswith("!") else term[1:] not in labels

    return lambda labels: all(holds(each, labels) for each in terms)


def _status(status: str, code: int) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": status, "code": code}


@contextmanager
def api_server(directory: Path) -> Iterator[ApiServer]:
    directory.mkdir()
    server = ApiServer(directory)
    try:
        yield server
    finally:
        server.close()
