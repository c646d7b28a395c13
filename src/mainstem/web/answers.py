"""Answers in JSON, and errors of ours as programs read them: `{"error": {"code", "message", "hint"}}`."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from mainstem.core.errors import MainstemError


def json_answer(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Response:
    """`body` as msgspec encodes it."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def error_answer(
    status: int, code: str, error: MainstemError, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """An error, on one line, with what to do where it says so; `more`: what else the answer has beside it."""
    details = {"code": code, "message": str(error)} | ({"hint": error.hint} if error.hint else {})
    return json_answer(status, {"error": details, **more}, headers)
