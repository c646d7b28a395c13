"""UpdateFeatures, API 57, versions 0-2 (KIP-584, KIP-1022).

Behaviour: features have the level that ApiVersions tells, and no other: to set that one is no error, anything else is
INVALID_UPDATE_VERSION.

1: kinds of changes, and to check only. 2: one code for all features.
"""

from typing import Any, Final

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.api_versions import FINALIZED_FEATURES
from mainstem.broker.security.acls import ALTER, CLUSTER, THE_CLUSTER
from mainstem.wire.errors import Code, RequestError

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_FAILED: Final = "The update failed for all features since the following feature had an error: "


@handler(57)
def update_features(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(ALTER, CLUSTER, THE_CLUSTER)
    levels = FINALIZED_FEATURES
    for each in request.feature_updates:
        name, wanted = each.feature, each.max_version_level
        reason = ""
        if name not in levels:
            reason = "This log does not have this feature."
        elif getattr(each, "upgrade_type", _UPGRADE) not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
            reason = "The controller does not support the given upgrade type."
        elif wanted != levels[name]:
            reason = f"Its level is {levels[name]} and stays so."
        if reason:
            message = f"{_FAILED}Invalid update version {wanted} for feature {name}. {reason}"
            raise RequestError(Code.invalid_update_version, message)
    # Before version 2 each feature has its own result.
    return {"error_code": Code.none, "results": [{"feature": each.feature} for each in request.feature_updates]}
