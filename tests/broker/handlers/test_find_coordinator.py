"""FindCoordinator: one node coordinates everything."""

import pytest

from mainstem.wire.errors import Code


@pytest.mark.parametrize("version", range(7))
def test_every_version_names_this_node(raw, version, mainstem_log):
    if version >= 4:
        (found,) = raw.call(10, version, key_type=0, coordinator_keys=["g"]).coordinators
        assert found.key == "g"
    else:
        found = raw.call(10, version, key="g")
    assert (found.error_code, found.node_id) == (Code.none, 1)
    assert f"{found.host}:{found.port}" == mainstem_log.bootstrap
