"""Every version answers; what it answers is held against Apache Kafka: tests/contract/test_one_node.py."""

import pytest

from mainstem.broker.handlers import load_handlers
from tests.contract.test_one_node import CASES
from tests.support.raw import codes_of

API_KEY = 38
HANDLER = load_handlers()[API_KEY]


@pytest.mark.parametrize("version", range(HANDLER.min_version, HANDLER.max_version + 1))
def test_every_version_answers(raw, version):
    (fields, codes) = next((fields, codes) for key, _, fields, codes in CASES if key == API_KEY)
    answer = raw.call(API_KEY, version, **fields)
    assert {each.name for each in codes_of(answer)} <= codes | {"unknown_topic_or_partition"}
