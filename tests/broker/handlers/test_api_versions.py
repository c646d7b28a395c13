"""ApiVersions: what we claim is what we run."""

import pytest

from mainstem.broker.handlers import load_handlers
from mainstem.wire.errors import Code
from tests.support.raw import RawClient


def features(answer):
    return {each.name: (each.min_version, each.max_version) for each in answer.supported_features}


@pytest.mark.parametrize("version", range(5))
def test_every_handler_is_advertised(raw, version):
    software = {"client_software_name": "test", "client_software_version": "1"} if version >= 3 else {}
    listed = {each.api_key: each for each in raw.call(18, version, **software).api_keys}
    handlers = load_handlers()
    assert listed.keys() == handlers.keys()
    for key, handler in handlers.items():
        assert listed[key].max_version == handler.max_version
        assert listed[key].min_version == (0 if key == 0 else handler.min_version)


def test_g1_an_unknown_version_is_answered_in_version_0_with_the_versions_of_this_api(raw):
    answer = raw.unknown_version(18, 99, answer_version=0)
    assert answer.error_code is Code.unsupported_version
    assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == [(18, 0, 4)]
    assert raw.call(18, 0).error_code is Code.none  # the connection lives on


@pytest.mark.parametrize("name", ["", "-x", "a b", "x."])
def test_g1_client_software_must_look_like_a_name(raw, name):
    answer = raw.call(18, 3, client_software_name=name, client_software_version="1.0")
    assert answer.error_code is Code.invalid_request


def test_g2_transactions_version_2_is_finalized(raw):
    answer = raw.call(18, 4, client_software_name="a", client_software_version="1")
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    assert finalized["transaction.version"] == 2
    assert answer.finalized_features_epoch >= 0
    served = {each.api_key: each.max_version for each in answer.api_keys}
    assert ("group.version" in finalized) is (68 in served)
    assert ("share.version" in finalized) is (78 in served)
    assert ("streams.version" in finalized) is (88 in served)
    assert served[0] >= 12, "transactions, version 2, need Produce 12"


def test_g3_features_whose_lowest_version_is_0_are_left_out_before_version_4(raw):
    software = {"client_software_name": "a", "client_software_version": "1"}
    assert features(raw.call(18, 3, **software)) == {}
    assert features(raw.call(18, 4, **software))["transaction.version"] == (0, 2)


def test_g4_produce_is_advertised_from_version_0_though_it_is_served_from_3(mainstem_log):
    with RawClient(mainstem_log.bootstrap) as raw:
        listed = {each.api_key: each for each in raw.call(18, 0).api_keys}
        assert (listed[0].min_version, listed[0].max_version) == (0, 13)
        with pytest.raises(ConnectionError):
            raw.unknown_version(0, 2, answer_version=3)


def test_no_metadata_version_is_finalized(raw):
    """It is that of the records of a quorum; where it is missing, clients ask each API for its versions."""
    answer = raw.call(18, 4, client_software_name="a", client_software_version="1")
    assert "metadata.version" not in {each.name for each in answer.finalized_features}
    assert "metadata.version" not in features(answer)
