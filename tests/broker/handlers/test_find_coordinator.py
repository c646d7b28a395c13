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


TOPIC_ID = "X9aS5BohQRmFq1MK6WRuzA"


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (f"g:{TOPIC_ID}:0", Code.none),
        (f"g:h:{TOPIC_ID}==:+1", Code.none),
        (f"g:{TOPIC_ID}:-1", Code.none),
        ("g", Code.invalid_request),
        ("", Code.invalid_request),
        ("g::0", Code.invalid_request),
        ("g:b:c", Code.invalid_request),
        ("g:b:0", Code.invalid_request),
        (f":{TOPIC_ID}:0", Code.invalid_request),
        (f" :{TOPIC_ID}:0", Code.invalid_request),
        (f"g:{TOPIC_ID}:", Code.invalid_request),
        (f"g:{TOPIC_ID}: 0", Code.invalid_request),
        (f"g:{TOPIC_ID}:2147483648", Code.invalid_request),
        (f"g:{'9' * 5000}:{'9' * 5000}", Code.invalid_request),
    ],
)
def test_of_a_share_partition(raw, key, code):
    (found,) = raw.call(10, 6, key_type=2, coordinator_keys=[key]).coordinators
    assert (found.key, found.error_code) == (key, code)


def test_other_kinds_are_none(raw):
    for version, kind in ((5, 2), (6, 3)):
        (found,) = raw.call(10, version, key_type=kind, coordinator_keys=[f"g:{TOPIC_ID}:0"]).coordinators
        assert found.error_code == Code.invalid_request
