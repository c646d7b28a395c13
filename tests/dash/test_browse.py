import json
import struct

import pytest

from mainstem.client.append import append
from mainstem.client.errors import UnknownTopic
from mainstem.client.topics import ensure_topic
from mainstem.core import UserError
from mainstem.dash import browse


def pages(ask):
    """All pages, each asked for where the one before it said."""
    page = ask(None)
    found = [page]
    while page.next:
        page = ask(browse.positions(page.next))
        found.append(page)
    return found


def places(found):
    return [(record.partition, record.offset) for page in found for record in page.records]


def test_it_tells_of_partitions_and_settings(shop):
    about = browse.about(shop.connection, "shop.orders")
    assert [each.partition for each in about.partitions] == [0, 1, 2]
    assert about.settings["cleanup.policy"] == "delete"
    with pytest.raises(UnknownTopic):
        browse.about(shop.connection, "none")


@pytest.mark.parametrize("only", [None, 1])
def test_pages_hold_every_record_once_in_both_directions(shop, only):
    back = pages(lambda before: browse.newest(shop.connection, "shop.orders", 37, before, only))
    on = pages(lambda start: browse.from_offset(shop.connection, "shop.orders", 37, start or {}, only))
    assert all(len(page.records) <= 37 for page in back + on)
    assert len(places(back)) == len(set(places(back)))
    assert sorted(places(back)) == sorted(places(on))
    if only is None:
        assert len(places(on)) == 240
        return
    assert {partition for partition, _ in places(back)} == {only}
    assert places(back) == sorted(places(back), reverse=True)
    assert places(on) == sorted(places(on))


def test_values_are_texts(shop):
    large = 2**60 + 1
    append(
        shop.connection,
        "odd",
        [
            (b"a", json.dumps({"n": large}).encode()),
            (b"b", None),
            (b"c", b"\xff\xfe"),
            (b"d", b"\0" + struct.pack(">I", 77777) + b"avro?"),
            (b"e", b"plain " * 1000),
        ],
    )
    found = {record.key: record for record in browse.newest(shop.connection, "odd", 10).records}
    assert found["a"].value == f'{{"n":{large}}}'
    assert (found["b"].kind, found["b"].value) == ("tombstone", "")
    assert (found["c"].kind, found["c"].value) == ("bytes", "ff fe")
    assert (found["d"].kind, "77777" in found["d"].undecoded) == ("bytes", True)
    assert (len(found["e"].value), found["e"].characters) == (browse.SHORT_CHARACTERS, 6000)
    [whole] = browse.one(shop.connection, "odd", found["e"].partition, found["e"].offset).records
    assert whole.value == "plain " * 1000
    assert browse.one(shop.connection, "odd", 0, 10**6).records == []


def test_an_empty_topic_has_one_empty_page(shop):
    ensure_topic(shop.connection, "empty", 2)
    assert browse.newest(shop.connection, "empty", 5) == browse.Page([])
    assert browse.from_offset(shop.connection, "empty", 5, {0: 9}) == browse.Page([])


def test_what_is_no_position_is_told():
    assert browse.positions("0:12,3:4") == {0: 12, 3: 4}
    with pytest.raises(UserError, match="expected PARTITION:OFFSET"):
        browse.positions("0:x")


def test_a_partition_that_is_not_there_is_told(shop):
    with pytest.raises(UserError, match="from 0 to 2, found 3"):
        browse.newest(shop.connection, "shop.orders", 5, only=3)
