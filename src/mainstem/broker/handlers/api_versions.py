"""ApiVersions, API 18, versions 0-4.

Behaviour: lists what is served (`broker.served`), and the features whose finalized level decides how clients behave:
transaction.version 2 makes Java and Go clients use transactions by KIP-890. An unknown version of the request itself
is answered in version 0 (KIP-511; `broker.dispatch`). The answer's header has no tags in any version.

3: the client's software is checked and kept. 4: features whose lowest version is 0 are listed (KAFKA-17011); before,
they are left out, since old clients fail on them.
"""

import re
from typing import Any, Final

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.served import SERVED
from mainstem.wire.errors import Code, RequestError

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FEATURES: Final = {  # name: (lowest, highest and finalized version)
    "transaction.version": (0, 2),
    "group.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
}
FINALIZED_FEATURES: Final = {name: highest for name, (_, highest) in _FEATURES.items()}
"""The level of each."""


@handler(18)
def api_versions(request: Any, ctx: RequestContext) -> dict[str, Any]:
    if ctx.version >= 3:
        software = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(each) for each in software):
            raise RequestError(Code.invalid_request, f"client software {software!r}: expected letters, digits, - and .")
        ctx.connection.client_software = software
    return {
        "api_keys": [
            {"api_key": api_key, "min_version": each.advertised, "max_version": each.max_version}
            for api_key, each in SERVED.items()
        ],
        "supported_features": [
            {"name": name, "min_version": lowest, "max_version": highest}
            for name, (lowest, highest) in _FEATURES.items()
            if ctx.version >= 4 or lowest > 0
        ],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "max_version_level": highest, "min_version_level": highest}
            for name, highest in FINALIZED_FEATURES.items()
        ],
    }
