"""Confluent's REST API for schemas, over the state that the log holds.

Paths, bodies, media types and error codes are those of https://docs.confluent.io/platform/current/schema-registry/develop/api.html,
so that its clients work unchanged. Left out: JSON Schema and Protobuf, rule sets (stored, not run), associations, tags,
contexts beyond listing (a subject `:.ctx:name` is a subject of that very name). See docs/unsupported.md.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mainstem.client.errors import RecordRefused
from mainstem.core.bodies import Bodies, BodiesFull, BodyTooLarge, BodyTooSlow, Held
from mainstem.core.errors import MainstemError
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.registry.errors import InvalidSchema, NotFound, NotPermitted, RegistryError, StoreUnavailable
from mainstem.registry.records import SchemaValue
from mainstem.registry.schema import brief
from mainstem.registry.state import NewSchema, State, guid_of
from mainstem.registry.store import Store

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
BODY_LIMIT = 1 << 20
BODY_SECONDS = 30.0  # that a client may take to send one
BODIES_BYTES = 16 << 20  # of all that are held at once

log = get_logger()


def routes(store: Store) -> list[BaseRoute]:
    """The registry's paths; each answers from `store.state`, writes go through `store.write`."""
    api = _Api(store)
    bodies = Bodies(BODIES_BYTES, seconds=BODY_SECONDS)
    version = "/subjects/{subject:path}/versions/{version}"
    # Subjects may hold slashes (sent as %2F, decoded before routing): longer paths come first.
    table: list[tuple[str, str, Callable[[Request], Awaitable[Any]]]] = [
        ("GET", "/", api.root),
        ("GET", "/subjects", api.subjects),
        ("GET", "/schemas", api.schemas),
        ("GET", "/schemas/types", api.types),
        ("GET", "/schemas/ids/{id}", api.by_id),
        ("GET", "/schemas/ids/{id}/schema", api.text_by_id),
        ("GET", "/schemas/ids/{id}/subjects", api.subjects_of_id),
        ("GET", "/schemas/ids/{id}/versions", api.versions_of_id),
        ("GET", "/schemas/guids/{guid}", api.by_guid),
        ("GET", "/schemas/guids/{guid}/ids", api.ids_of_guid),
        ("GET", version + "/schema", api.text),
        ("GET", version + "/referencedby", api.referenced_by),
        ("GET", version, api.version),
        ("DELETE", version, api.delete_version),
        ("GET", "/subjects/{subject:path}/versions", api.versions),
        ("POST", "/subjects/{subject:path}/versions", api.register),
        ("GET", "/subjects/{subject:path}/metadata", api.latest_with_metadata),
        ("POST", "/subjects/{subject:path}", api.lookup),
        ("DELETE", "/subjects/{subject:path}", api.delete_subject),
        ("POST", "/compatibility/subjects/{subject:path}/versions/{version}", api.compatibility),
        ("POST", "/compatibility/subjects/{subject:path}/versions", api.compatibility),
        ("GET", "/config", api.config),
        ("PUT", "/config", api.set_config),
        ("DELETE", "/config", api.delete_config),
        ("GET", "/config/{subject:path}", api.config),
        ("PUT", "/config/{subject:path}", api.set_config),
        ("DELETE", "/config/{subject:path}", api.delete_config),
        ("GET", "/mode", api.mode),
        ("PUT", "/mode", api.set_mode),
        ("DELETE", "/mode", api.delete_mode),
        ("GET", "/mode/{subject:path}", api.mode),
        ("PUT", "/mode/{subject:path}", api.set_mode),
        ("DELETE", "/mode/{subject:path}", api.delete_mode),
        ("GET", "/contexts", api.contexts),
        ("GET", "/v1/metadata/id", api.metadata_id),
        ("GET", "/v1/metadata/version", api.metadata_version),
    ]
    return [Route(path, _endpoint(call, bodies), methods=[method]) for method, path, call in table]


class _Api:
    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def state(self) -> State:
        return self.store.state

    # -- reading

    async def root(self, _: Request) -> Any:
        return {}

    async def subjects(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", "")
        prefix = "" if prefix in {":*:", "::"} else prefix  # Confluent's "every context" and "the default one"
        deleted_only = _flag(request, "deletedOnly") or _flag(request, "deleted_only")
        found = self.state.list_subjects(prefix=prefix, deleted=_flag(request, "deleted"), deleted_only=deleted_only)
        return _page(request, found)

    async def schemas(self, request: Request) -> Any:
        prefix, deleted = request.query_params.get("subjectPrefix", ""), _flag(request, "deleted")
        found = []
        for subject in self.state.list_subjects(prefix="" if prefix == ":*:" else prefix, deleted=deleted):
            numbers = self.state.versions(subject, deleted=deleted)
            wanted = numbers[-1:] if _flag(request, "latestOnly") else numbers
            found += [_described(self.state.version(subject, number, deleted=deleted)) for number in wanted]
        return _page(request, found)

    async def types(self, _: Request) -> Any:
        return ["AVRO"]

    async def by_id(self, request: Request) -> Any:
        value = self.state.schema_by_id(_schema_id(request))
        answer = _content(value)
        return answer | {"maxId": self.state.max_id} if _flag(request, "fetchMaxId") else answer

    async def text_by_id(self, request: Request) -> Any:
        return msgspec.Raw(self.state.schema_by_id(_schema_id(request)).schema.encode())

    async def subjects_of_id(self, request: Request) -> Any:
        found = self.state.versions_of_id(_schema_id(request), deleted=_flag(request, "deleted"))
        return _page(request, sorted({value.subject for value in found if _wants(request, value)}))

    async def versions_of_id(self, request: Request) -> Any:
        found = self.state.versions_of_id(_schema_id(request), deleted=_flag(request, "deleted"))
        return _page(request, [{"subject": v.subject, "version": v.version} for v in found if _wants(request, v)])

    async def by_guid(self, request: Request) -> Any:
        return _content(self.state.schema_by_guid(request.path_params["guid"]))

    async def ids_of_guid(self, request: Request) -> Any:
        return [{"context": ".", "id": self.state.schema_by_guid(request.path_params["guid"]).id}]

    async def versions(self, request: Request) -> Any:
        deleted_only = _flag(request, "deletedOnly") or _flag(request, "deleted_only")
        found = self.state.versions(_subject(request), deleted=_flag(request, "deleted"), deleted_only=deleted_only)
        return _page(request, found)

    async def version(self, request: Request) -> Any:
        return _described(self._version(request))

    async def text(self, request: Request) -> Any:
        return msgspec.Raw(self._version(request).schema.encode())

    async def referenced_by(self, request: Request) -> Any:
        value = self._version(request)
        return _page(request, self.state.referenced_by(value.subject, value.version))

    async def latest_with_metadata(self, request: Request) -> Any:
        """The latest version whose metadata has all the given pairs."""
        keys, values = request.query_params.getlist("key"), request.query_params.getlist("value")
        wanted = dict(zip(keys, values, strict=False))
        subject = _subject(request)
        for number in reversed(self.state.versions(subject)):
            value = self.state.version(subject, number)
            properties = _properties(value.metadata)
            if all(properties.get(key) == expected for key, expected in wanted.items()):
                return _described(value)
        raise NotFound("Schema not found", code=40403)

    async def lookup(self, request: Request) -> Any:
        return _described(
            self.state.find(_subject(request), await _new_schema(request), deleted=_flag(request, "deleted"))
        )

    async def compatibility(self, request: Request) -> Any:
        subject, verbose = _subject(request), _flag(request, "verbose")
        against: int | str | None = "all"
        if "version" in request.path_params:
            against = _version_number(request.path_params["version"])
            if against is None and not self.state.subjects.get(subject):
                against = "all"  # nothing there yet: everything is compatible with it
        try:
            reasons = self.state.compatibility(subject, await _new_schema(request), against)
        except InvalidSchema as error:
            if not verbose:
                raise
            reasons = [str(error)]
        return {"is_compatible": not reasons} | ({"messages": reasons} if verbose else {})

    async def config(self, request: Request) -> Any:
        return self.state.config(_subject(request), default_to_global=_flag(request, "defaultToGlobal"))

    async def mode(self, request: Request) -> Any:
        return {"mode": self.state.mode(_subject(request), default_to_global=_flag(request, "defaultToGlobal"))}

    async def contexts(self, request: Request) -> Any:
        named = {
            name.split(":")[1] for name in self.state.list_subjects() if name.startswith(":.") and name.count(":") > 1
        }
        return _page(request, sorted({".", *named}))

    async def metadata_id(self, _: Request) -> Any:
        return {"scope": {"path": [], "clusters": {"kafka-cluster": "mainstem", "schema-registry-cluster": "mainstem"}}}

    async def metadata_version(self, _: Request) -> Any:
        from importlib.metadata import version

        return {"version": f"mainstem {version('mainstem')}", "commitId": ""}

    # -- writing

    async def register(self, request: Request) -> Any:
        subject, new = _subject(request), await _new_schema(request)

        def decide(state: State) -> Any:
            registration = state.register(subject or "", new)
            return registration, registration.records

        registration = await self.store.write(decide)
        if registration.records:
            log.info("schema_registered", subject=subject, version=registration.version, schema_id=registration.id)
        return {"id": registration.id}

    async def delete_version(self, request: Request) -> Any:
        subject, number = _subject(request), _version_number(request.path_params["version"])
        permanent = _flag(request, "permanent")
        return await self.store.write(lambda state: state.delete_version(subject or "", number, permanent=permanent))

    async def delete_subject(self, request: Request) -> Any:
        subject, permanent = _subject(request), _flag(request, "permanent")
        return await self.store.write(lambda state: state.delete_subject(subject or "", permanent=permanent))

    async def set_config(self, request: Request) -> Any:
        subject, changes = _subject(request), await _body(request, dict[str, Any])
        await self.store.write(lambda state: state.set_config(subject, changes))
        return changes

    async def delete_config(self, request: Request) -> Any:
        subject = _subject(request)
        return await self.store.write(lambda state: state.delete_config(subject))

    async def set_mode(self, request: Request) -> Any:
        subject, body = _subject(request), await _body(request, dict[str, Any])
        force, mode = _flag(request, "force"), str(body.get("mode", ""))
        return await self.store.write(lambda state: ({"mode": mode}, state.set_mode(subject, mode, force=force)))

    async def delete_mode(self, request: Request) -> Any:
        subject = _subject(request)
        return {"mode": await self.store.write(lambda state: state.delete_mode(subject))}

    def _version(self, request: Request) -> SchemaValue:
        number = _version_number(request.path_params["version"])
        return self.state.version(_subject(request) or "", number, deleted=_flag(request, "deleted"))


def _endpoint(call: Callable[[Request], Awaitable[Any]], bodies: Bodies) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            with bodies.hold() as request.state.held:
                return _answer(200, await call(request))
        except RegistryError as error:
            return _error(error.status, error.code, error)
        except RecordRefused as error:  # as often as it is sent: larger than the topic takes, or not allowed
            return _error(RegistryError.status, RegistryError.code, error)
        except BodyTooLarge as error:
            return _error(NotPermitted.status, 42209, error)
        except BodyTooSlow as error:
            return _error(408, 408, error)
        except BodiesFull as error:
            return _error(429, 429, error)
        except MainstemError as error:  # the log does not answer, or has lost the topic; clients come again
            log.warning("registry_unavailable", path=request.url.path, error=str(error))
            return _error(StoreUnavailable.status, StoreUnavailable.code, error)
        except ClientDisconnect:
            return Response(status_code=499)

    return endpoint


def _answer(status: int, body: Any) -> Response:
    return Response(msgspec.json.encode(body), status, media_type=MEDIA_TYPE)


def _error(status: int, code: int, error: MainstemError) -> Response:
    hint = f" ({error.hint})" if error.hint else ""
    return _answer(status, {"error_code": code, "message": f"{error}{hint}"})


def _subject(request: Request) -> Any:
    """The subject in the path; None where the path speaks of the whole registry."""
    subject = request.path_params.get("subject")
    return subject.removeprefix(":.:") if subject else None  # `:.:` is the default context, written out


def _version_number(text: str) -> int | None:
    """None is the latest."""
    if text in {"latest", "-1"}:
        return None
    number = _number(text)
    if not number:
        message = f"The specified version '{text[:40]}' is not a valid version id. Allowed values are [1, 2^31-1] and 'latest'"
        raise NotPermitted(message, code=42202)
    return number


def _schema_id(request: Request) -> int:
    text = request.path_params["id"]
    number = _number(text)
    if number is None:
        raise NotFound(f"Schema {text[:40]} not found", code=40403)
    return number


def _number(text: str) -> int | None:
    """None is no number below 2^31. `isdigit` alone takes digits that `int` does not, and `int` only so many."""
    digits = text.isascii() and text.isdigit() and len(text) <= 10
    return int(text) if digits and int(text) < 2**31 else None


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _page(request: Request, found: list[Any]) -> list[Any]:
    try:
        offset, limit = int(request.query_params.get("offset", 0)), int(request.query_params.get("limit", -1))
    except ValueError:
        raise NotPermitted("offset and limit are numbers") from None
    return found[offset:] if limit < 0 else found[offset : offset + limit]


def _wants(request: Request, value: SchemaValue) -> bool:
    return request.query_params.get("subject", value.subject) == value.subject


async def _body(request: Request, kind: Any) -> Any:
    held: Held = request.state.held
    body = await held.read(request.stream(), BODY_LIMIT)
    try:
        return msgspec.json.decode(body, type=prepared(kind))
    except msgspec.DecodeError as error:
        raise RegistryError(f"the body is not what this request takes: {error}") from None
    except RecursionError:
        raise RegistryError("the body is not what this request takes: it is nested too deeply") from None


async def _new_schema(request: Request) -> NewSchema:
    new: NewSchema = await _body(request, NewSchema)
    found = (new.metadata or {}).get("properties")
    if found is not None and not isinstance(found, dict):
        raise RegistryError(f"/metadata/properties: expected an object, found {brief(found)}")
    return new


def _properties(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Those of a version's metadata; none where whoever wrote it to the topic put something else there."""
    found = (metadata or {}).get("properties")
    return found if isinstance(found, dict) else {}


def _content(value: SchemaValue) -> dict[str, Any]:
    """A schema without subject and version. Fields that say nothing are left out, as Confluent's answers do."""
    answer: dict[str, Any] = {"schema": value.schema, "guid": guid_of(value)}
    if value.schema_type != "AVRO":
        answer["schemaType"] = value.schema_type
    if value.references:
        answer["references"] = value.references
    if value.metadata:
        answer["metadata"] = value.metadata
    if value.rule_set:
        answer["ruleSet"] = value.rule_set
    return answer


def _described(value: SchemaValue) -> dict[str, Any]:
    return {"subject": value.subject, "version": value.version, "id": value.id, **_content(value)}
