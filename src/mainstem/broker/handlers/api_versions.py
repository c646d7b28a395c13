"""ApiVersions, API 18, versions 0-4.

Behaviour: lists what the handlers registered, and the features whose finalized level decides how clients behave:
transaction.version 2 makes Java and Go clients use transactions by KIP-890. An unknown version of the request itself
is answered in version 0 (KIP-511; `broker.dispatch`). The answer's header has no tags in any version.

3: the client's software is checked and kept. 4: features whose lowest version is 0 are listed (KAFKA-17011); before,
they are left out, since old clients fail on them.
"""

import re
from typing import Any, Final

from mainstem.broker.handlers import RequestContext, handler
from mainstem.wire.errors import Code, RequestError

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FEATURES: Final = {  # name: (lowest, highest and finalized version, API that must be served for it)
    "transaction.version": (0, 2, 26),
    "group.version": (0, 1, 68),
    "share.version": (0, 1, 78),
    "streams.version": (0, 1, 88),
}


def finalized_features(ctx: RequestContext) -> dict[str, int]:
    """The level of each feature."""
    served = ctx.broker.dispatch.handlers
    return {name: highest for name, (_, highest, api) in _FEATURES.items() if api in served}


@handler(18, 0, 4)
def api_versions(request: Any, ctx: RequestContext) -> dict[str, Any]:
    if ctx.version >= 3:
        software = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(each) for each in software):
            raise RequestError(Code.invalid_request, f"client software {software!r}: expected letters, digits, - and .")
        ctx.connection.client_software = software
    served = ctx.broker.dispatch.handlers
    features = {name: levels for name, (*levels, api) in _FEATURES.items() if api in served}
    return {
        "api_keys": [
            {"api_key": each.api_key, "min_version": each.advertised_from, "max_version": each.max_version}
            for each in sorted(served.values(), key=lambda each: each.api_key)
        ],
        "supported_features": [
            {"name": name, "min_version": lowest, "max_version": highest}
            for name, (lowest, highest) in features.items()
            if ctx.version >= 4 or lowest > 0
        ],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "max_version_level": highest, "min_version_level": highest}
            for name, (_, highest) in features.items()
        ],
    }
