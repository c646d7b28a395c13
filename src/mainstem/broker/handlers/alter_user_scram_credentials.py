"""AlterUserScramCredentials, API 51, version 0 (KIP-554).

Behaviour: sets and deletes credentials; durable when answered, in effect for the next client that says who it is. Of a
user with an error nothing is changed. The client has salted and iterated the password: it never comes here.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import ALTER, CLUSTER, THE_CLUSTER
from mainstem.core import MainstemError
from mainstem.wire.errors import Code, RequestError, code_of


@handler(51, failure=lambda request, code: {"results": [_result(name, code) for name in _users(request)]})
async def alter_user_scram_credentials(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(ALTER, CLUSTER, THE_CLUSTER)
    credentials = ctx.broker.credentials
    times = Counter((each.name, each.mechanism) for each in (*request.deletions, *request.upsertions))
    both = {each.name for each in request.deletions} & {each.name for each in request.upsertions}
    refused: dict[str, RequestError] = {}

    def look(each: Any, check: Callable[[], None]) -> None:
        """Whether a change may be made; of a user, the first that may not is told."""
        if times[each.name, each.mechanism] > 1 or each.name in both:
            text = "A user credential cannot be altered twice in the same request"
            refused.setdefault(each.name, RequestError(Code.duplicate_resource, text))
            return
        try:
            check()
        except RequestError as error:
            refused.setdefault(each.name, error)

    for each in request.deletions:
        look(each, partial(credentials.check_deletion, each.name, each.mechanism))
    for each in request.upsertions:
        salted_password = bytes(each.salted_password)
        look(each, partial(credentials.check_upsertion, each.name, each.mechanism, each.iterations, salted_password))
    try:
        await credentials.change(
            ((each.name, each.mechanism) for each in request.deletions if each.name not in refused),
            (
                (each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
                for each in request.upsertions
                if each.name not in refused
            ),
        )
    except MainstemError as error:
        return {"results": [_result(name, code_of(error), str(error)) for name in _users(request)]}
    return {
        "results": [
            _result(name, refused[name].code, str(refused[name])) if name in refused else _result(name, Code.none)
            for name in _users(request)
        ]
    }


def _users(request: Any) -> list[str]:
    return list(dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions)))


def _result(name: str, code: int, message: str | None = None) -> dict[str, Any]:
    return {"user": name, "error_code": code, "error_message": message}
