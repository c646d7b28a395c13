"""What a field of a kio class is."""

from dataclasses import fields

from mainstem.wire import codec
from mainstem.wire.codec import EntityType
from mainstem.wire.fields import take_apart


def test_fields_are_taken_apart():
    request = {each.name: each for each in fields(codec.schema(3, 13, EntityType.request))}
    item, is_array, optional = take_apart(request["topics"].type)
    assert (item.__name__, is_array, optional) == ("MetadataRequestTopic", True, True)
    assert take_apart(request["allow_auto_topic_creation"].type) == (bool, False, False)
    topic = {each.name: each for each in fields(item)}
    assert take_apart(topic["name"].type)[1:] == (False, True)
