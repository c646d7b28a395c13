"""Answers in JSON, and errors of ours as programs read them: `{"error": {"code", "message", "hint"}}`."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mainstem.core.errors import MainstemError, UserError


def json_answer(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Response:
    """`body` as msgspec encodes it."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def error_answer(
    status: int, code: str, error: MainstemError, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """An error, on one line, with what to do where it says so; `more`: what else the answer has beside it."""
    details = {"code": code, "message": str(error)} | ({"hint": error.hint} if error.hint else {})
    return json_answer(status, {"error": details, **more}, headers)


async def no_route(request: Request, error: Exception) -> Response:
    """What is answered to a path that there is none of, or to another method than its own: a handler of starlette's
    for `HTTPException`.
    """
    if not isinstance(error, HTTPException):
        raise error
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        wrong = UserError(f"{path}: expected {allowed or 'another method'}, found {request.method}")
        return error_answer(405, "method_not_allowed", wrong, error.headers)
    if error.status_code == 404:
        return error_answer(404, "not_found", UserError(f"{path}: there is nothing at this path"))
    return error_answer(error.status_code, "failed", UserError(error.detail), error.headers)


def check_once(request: Request) -> None:
    """Whether each parameter is there once: of two, nobody knows which one is meant.

    Raises:
        UserError: one is there more often.
    """
    names = [name for name, _ in request.query_params.multi_items()]
    if len(names) > len(request.query_params):
        name = next(each for each in names if names.count(each) > 1)
        raise UserError(f"{name[:100]}: expected it once, found it {names.count(name)} times")
