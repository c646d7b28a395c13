"""What the views of a node take and give, as an OpenAPI document: https://spec.openapis.org/oas/v3.1.0"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from mainstem.client.basis import DEFAULT_SECONDS, HEADER, MOST_SECONDS
from mainstem.serve.node import Node
from mainstem.serve.view import View

VERSION = "Mainstem-Version"
"""The header that says which versions of jobs an answer is of: `delays_hourly@2`."""

_TYPES: dict[str, dict[str, str]] = {
    "BOOLEAN": {"type": "boolean"},
    "INTEGER": {"type": "integer", "format": "int32"},
    "BIGINT": {"type": "integer", "format": "int64"},
    "FLOAT": {"type": "number"},
    "DOUBLE": {"type": "number"},
    "VARCHAR": {"type": "string"},
    "BLOB": {"type": "string", "contentEncoding": "base64"},
    "DATE": {"type": "string", "format": "date"},
    "TIME": {"type": "string", "format": "time"},
    "TIMESTAMP": {"type": "string"},
    "TIMESTAMP WITH TIME ZONE": {"type": "string", "format": "date-time"},
    "UUID": {"type": "string", "format": "uuid"},
    "DECIMAL": {"type": "string"},
}


def document(node: Node) -> dict[str, Any]:
    """The document, with the columns of each view as far as they are known now."""
    paths: dict[str, Any] = dict(_ABOUT)
    for name, view in node.views.items():
        makers = {"key-value": _key_value, "search": _search, "sql": _sql}
        for path, (method, operation) in makers[view.config.kind](name, view).items():
            operation["operationId"] = f"{name}_{path}"
            operation["tags"] = [name]
            operation.setdefault("parameters", []).extend(_COMMON + _VERSIONED * (len(view.versions) == 1))
            operation["responses"] |= _FAILURES
            paths[f"/views/{name}/{path}"] = {method: operation}
    title = {"title": f"Views of {node.name}", "version": version("mainstem")}
    return {"openapi": "3.1.0", "info": title, "paths": paths, "components": {"schemas": {"Error": _ERROR}}}


def _key_value(name: str, view: View) -> dict[str, tuple[str, dict[str, Any]]]:
    (topic,) = view.config.names
    columns = view.columns.get(topic, {})
    entry = view.engine.entries.get(view.engine.topics[topic]) if view.engine is not None else None
    key = view.config.key_columns or (entry.key if entry is not None else ())
    at = [_parameter("at", {"type": "string"}, "As of this position: a token, or partition:offset,…")]
    one = [_parameter(each, _schema(columns.get(each, "VARCHAR")), required=True) for each in key]
    some = [_parameter(each, _schema(columns.get(each, "VARCHAR"))) for each in key]
    page = [
        _parameter("limit", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100}),
        _parameter("after", {"type": "string"}, "Where the page before ended: its `after`"),
    ]
    row = _row(columns)
    found = {"row": row, "partition": {"type": "integer"}, "offset": {"type": "integer"}}
    going_on = (
        "Where the next page begins, null at the end; a page may have fewer rows than `limit`, or none, before it"
    )
    following = {"type": ["string", "null"], "description": going_on}
    rows = {"rows": {"type": "array", "items": row}, "after": following}
    versions = at if view.config.versions else []
    return {
        "row": (
            "get",
            {
                "summary": f"The row of {topic} with a key",
                "parameters": [*one, *versions],
                "responses": {"200": _answer(found), "404": _failure("No row has this key")},
            },
        ),
        "rows": (
            "get",
            {
                "summary": f"Rows of {topic} whose key begins so, in its order",
                "parameters": [*some, *page, *versions],
                "responses": {"200": _answer(rows)},
            },
        ),
    }


def _search(name: str, view: View) -> dict[str, tuple[str, dict[str, Any]]]:
    rows = [_row(view.columns.get(topic, {})) for topic in view.config.names]
    hit = {
        "type": "object",
        "properties": {"topic": {"enum": list(view.config.names)}, "score": {"type": "number"}, "row": {"anyOf": rows}},
    }
    parameters = [
        _parameter("q", {"type": "string"}, "Words, or column:word; AND, OR, -word", required=True),
        _parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 10}),
        _parameter("offset", {"type": "integer", "minimum": 0, "default": 0}),
    ]
    found = {"total": {"type": "integer"}, "hits": {"type": "array", "items": hit}, "cut": {"type": "boolean"}}
    summary = f"Rows of {', '.join(view.config.names)} that fit some words"
    operation = {"summary": summary, "parameters": parameters, "responses": {"200": _answer(found)}}
    return {"search": ("get", operation)}


def _sql(name: str, view: View) -> dict[str, tuple[str, dict[str, Any]]]:
    tables = "; ".join(f"{topic} ({', '.join(view.columns.get(topic, {}))})" for topic in view.config.names)
    body = {
        "type": "object",
        "required": ["sql"],
        "properties": {
            "sql": {"type": "string", "description": f"One SELECT over: {tables}"},
            "parameters": {"type": ["array", "object"]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000},
            "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": 60, "default": 10},
        },
    }
    found = {
        "columns": {"type": "array", "items": {"type": "string"}},
        "rows": {"type": "array", "items": {"type": "array"}},
        "more": {"type": "boolean"},
    }
    content = {"required": True, "content": {"application/json": {"schema": body}}}
    summary = f"A query over {', '.join(view.config.names)}"
    return {"query": ("post", {"summary": summary, "requestBody": content, "responses": {"200": _answer(found)}})}


def _row(columns: Mapping[str, str]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: _or_null(_schema(kind)) for name, kind in columns.items()}}


def _schema(sql_type: str) -> dict[str, str]:
    return dict(_TYPES.get(sql_type.partition("(")[0], {}))


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"type": [schema["type"], "null"]} if "type" in schema else schema


def _parameter(
    name: str, schema: Mapping[str, Any], description: str = "", *, required: bool = False, where: str = "query"
) -> dict[str, Any]:
    told = {"description": description} if description else {}
    return {"name": name, "in": where, "required": required, "schema": dict(schema), **told}


def _answer(properties: Mapping[str, Any]) -> dict[str, Any]:
    versions = {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "Of topics that jobs write",
    }
    schema = {
        "type": "object",
        "required": list(properties),
        "properties": {**properties, "versions": versions},
    }
    text = {"type": "string"}
    headers = {
        HEADER: {"schema": text, "description": "The token of what the answer shows"},
        VERSION: {"schema": text, "description": "The versions of jobs that it is of: topic@version, …"},
    }
    return {"description": "The answer", "headers": headers, "content": {"application/json": {"schema": schema}}}


def _failure(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }


_COMMON = [
    _parameter(HEADER, {"type": "string"}, "Answer when all that this token has seen is applied", where="header"),
    _parameter(
        "timeout",
        {"type": "number", "minimum": 0, "maximum": MOST_SECONDS, "default": DEFAULT_SECONDS},
        "Seconds to wait",
    ),
]
_VERSIONED = [_parameter("version", {"type": "string"}, "Of the job: one that the view has beside the current one")]
_FAILURES = {
    "400": _failure("The request is wrong: the message says what was expected"),
    "409": _failure("The token is of another log"),
    "410": _failure("The position is from before what is kept"),
    "429": _failure("Too many ask already: ask again"),
    "503": _failure("The view is not so far: the message says how far it is"),
}
_TOLD = {"type": "object", "description": "By name: kind, topics, ready, position, state, why"}


def _told(operation_id: str, summary: str, properties: Mapping[str, Any], **failures: Any) -> dict[str, Any]:
    schema = {"type": "object", "required": list(properties), "properties": dict(properties)}
    answer = {"description": "The answer", "content": {"application/json": {"schema": schema}}}
    responses = {"200": answer, **{f"{status[1:]}": answer | each for status, each in failures.items()}}
    return {"get": {"operationId": operation_id, "summary": summary, "tags": ["node"], "responses": responses}}


_ABOUT = {
    "/health": _told(
        "health",
        "Whether every view can be asked",
        {**{each: {"type": "string"} for each in ("status", "why", "node", "log")}, "views": _TOLD},
        _503={"description": "A view cannot be asked yet"},
    ),
    "/views": _told("views", "What there is, and how far it is", {"views": _TOLD}),
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "hint": {"type": "string"}},
        }
    },
}
