"""DescribeCluster: the one node."""

import pytest

from mainstem.wire.errors import Code


@pytest.mark.parametrize("version", range(3))
def test_every_version_names_the_node(raw, version, mainstem_log):
    answer = raw.call(
        60, version, include_cluster_authorized_operations=True, **({"endpoint_type": 1} if version else {})
    )
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == mainstem_log.bootstrap
    assert answer.controller_id == broker.broker_id
    assert answer.cluster_id == raw.call(3, 9, topics=[]).cluster_id
    assert answer.cluster_authorized_operations > 0


def test_there_are_no_controllers(raw):
    assert raw.call(60, 1, endpoint_type=2).error_code is Code.mismatched_endpoint_type
    assert raw.call(60, 1, endpoint_type=9).error_code is Code.unsupported_endpoint_type
