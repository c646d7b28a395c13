"""Every version answers; what it answers is held against Apache Kafka: tests/contract/test_one_node.py."""

import uuid

import pytest

from mainstem.broker.handlers import load_handlers
from tests.contract.test_one_node import CASES
from tests.support.raw import codes_of

API_KEY = 74
HANDLER = load_handlers()[API_KEY]


@pytest.mark.parametrize("version", range(HANDLER.min_version, HANDLER.max_version + 1))
def test_every_version_answers(raw, version):
    (fields, codes) = next((fields, codes) for key, _, fields, codes in CASES if key == API_KEY)
    answer = raw.call(API_KEY, version, **fields)
    assert {each.name for each in codes_of(answer)} <= codes | {"unknown_topic_or_partition"}


def test_groups_with_settings_are_listed(raw):
    group = f"group-{uuid.uuid4().hex[:12]}"

    def listed():
        found = raw.call(API_KEY, 1, resource_types=[32]).config_resources
        assert {each.resource_type for each in found} <= {32}
        return group in {each.resource_name for each in found}

    def change(operation):
        configs = [{"name": "share.session.timeout.ms", "config_operation": operation, "value": "50000"}]
        raw.call(44, 1, resources=[{"resource_type": 32, "resource_name": group, "configs": configs}])

    assert not listed()
    change(0)
    assert listed()
    change(1)
    assert not listed()
