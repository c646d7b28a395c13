import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core import CorruptData
from mainstem.registry.errors import IncompatibleSchema, InvalidSchema, NotFound, NotPermitted, RegistryError
from mainstem.registry.records import Reference, SchemaValue, schema_key, schema_value, subject_key
from mainstem.registry.state import NewSchema, Registration, State, guid_of


def order(*fields):
    return NewSchema(json.dumps({"type": "record", "name": "Order", "fields": list(fields)}))


ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": "string"}
NOTE_OR_NONE = {"name": "note", "type": ["null", "string"], "default": None}


class Registry:
    """A state whose records are kept, as the topic would."""

    def __init__(self):
        self.state = State()
        self.topic = []

    def write(self, records):
        for key, value in records:
            self.topic.append((key, value))
            self.state.apply(key, value)

    def register(self, subject, new):
        registration = self.state.register(subject, new)
        self.write(registration.records)
        return registration.id

    def delete(self, subject, number=None, **more):
        deleted, records = (
            self.state.delete_version(subject, number, **more) if number else self.state.delete_subject(subject, **more)
        )
        self.write(records)
        return deleted

    def configure(self, subject, level):
        self.write(self.state.set_config(subject, {"compatibility": level})[1])

    def rebuilt(self):
        state = State()
        for key, value in self.topic:
            state.apply(key, value)
        return state

    def compacted(self):
        """What a new registry reads after the cleaner has been here: the last record of each key, in the old order."""
        last = {key: number for number, (key, _) in enumerate(self.topic)}
        state = State()
        for number, (key, value) in enumerate(self.topic):
            if last[key] == number and value is not None:
                state.apply(key, value)
        return state


@pytest.fixture
def registry():
    return Registry()


def test_versions_count_up_and_the_same_schema_stays_what_it_is(registry):
    assert registry.register("orders-value", order(ID)) == 1
    assert registry.register("orders-value", order(ID, NOTE_OR_NONE)) == 2
    assert registry.register("orders-value", NewSchema(json.dumps(json.loads(order(ID).schema), indent=4))) == 1
    assert registry.state.versions("orders-value") == [1, 2]
    assert registry.state.version("orders-value", None).id == 2


def test_the_same_schema_elsewhere_has_the_same_id(registry):
    assert registry.register("a", order(ID)) == registry.register("b", order(ID))
    assert [(v.subject, v.version) for v in registry.state.versions_of_id(1)] == [("a", 1), ("b", 1)]
    assert guid_of(registry.state.version("a", 1)) == guid_of(registry.state.version("b", 1))


def test_an_incompatible_schema_is_refused_with_its_reason(registry):
    registry.register("s", order(ID))
    with pytest.raises(IncompatibleSchema) as error:
        registry.register("s", order(ID, NOTE))
    (reason,) = error.value.reasons
    assert "cannot read data of version 1: READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1" in reason
    registry.configure("s", "NONE")
    assert registry.register("s", order(ID, NOTE)) == 2


def test_the_level_of_a_subject_goes_before_the_global_one(registry):
    registry.configure(None, "NONE")
    assert registry.state.level("s") == "NONE"
    registry.configure("s", "FULL")
    assert registry.state.level("s") == "FULL"
    with pytest.raises(NotFound) as error:
        registry.state.config("other", default_to_global=False)
    assert error.value.code == 40408
    registry.write(registry.state.delete_config("s")[1])
    assert registry.state.level("s") == "NONE"
    with pytest.raises(NotPermitted, match="Invalid compatibility level 'SOME'"):
        registry.configure("s", "SOME")


def test_soft_then_permanent_deletion(registry):
    registry.register("s", order(ID))
    registry.register("s", order(ID, NOTE_OR_NONE))
    with pytest.raises(NotFound) as error:
        registry.delete("s", 1, permanent=True)
    assert error.value.code == 40407
    assert registry.delete("s", 1) == 1
    assert registry.state.versions("s") == [2]
    assert registry.state.versions("s", deleted=True) == [1, 2]
    assert registry.state.schema_by_id(1).schema  # records still carry it
    with pytest.raises(NotFound) as error:
        registry.delete("s", 1)
    assert error.value.code == 40406
    assert registry.delete("s", 1, permanent=True) == 1
    with pytest.raises(NotFound):
        registry.state.schema_by_id(1)
    assert registry.delete("s") == [2]
    assert registry.state.list_subjects() == []
    assert registry.state.list_subjects(deleted=True) == ["s"]
    assert registry.delete("s", permanent=True) == [2]
    assert registry.state.list_subjects(deleted=True) == []


def test_the_latest_version_can_be_deleted_until_none_is_left(registry):
    """The second time it was the one just deleted."""
    registry.register("s", order(ID))
    registry.register("s", order(ID, NOTE_OR_NONE))
    for number in (2, 1):
        deleted, records = registry.state.delete_version("s", None)
        assert deleted == number
        registry.write(records)
    with pytest.raises(NotFound) as error:
        registry.state.delete_version("s", None)
    assert error.value.code == 40401


def test_a_deleted_schema_may_be_registered_again_and_keeps_its_id(registry):
    registry.register("s", order(ID))
    registry.delete("s")
    assert registry.register("s", order(ID)) == 1
    assert registry.state.versions("s", deleted=True) == [1, 2]


def test_an_id_never_comes_back_even_when_compaction_has_forgotten_its_schema(registry):
    registry.register("s", order(ID))
    registry.register("t", order(ID, NOTE))
    registry.delete("t")
    registry.delete("t", permanent=True)
    for state in (registry.state, registry.rebuilt(), registry.compacted()):
        assert state.register("u", NewSchema('"string"')).id == 3


def test_references(registry):
    registry.register("address", NewSchema('{"type":"record","name":"Address","fields":[]}'))
    customer = '{"type":"record","name":"Customer","fields":[{"name":"a","type":"Address"}]}'
    with pytest.raises(InvalidSchema, match="unknown type 'Address'"):
        registry.register("customer", NewSchema(customer))
    with pytest.raises(InvalidSchema, match="leads to version 9 of subject 'address': no such schema"):
        registry.register("customer", NewSchema(customer, references=(Reference("Address", "address", 9),)))
    registry.register("customer", NewSchema(customer, references=(Reference("Address", "address", 1),)))
    assert registry.state.referenced_by("address", 1) == [2]
    with pytest.raises(NotPermitted) as error:
        registry.delete("address")
    assert error.value.code == 42206


def test_a_reference_to_the_newest_version_is_stored_as_that_version(registry):
    """As -1, what the id means would change with the next version of the other subject."""
    customer = NewSchema(
        '{"type":"record","name":"Customer","fields":[{"name":"a","type":"Address"}]}',
        references=(Reference("Address", "address", -1),),
    )
    with pytest.raises(InvalidSchema, match="leads to the newest version of subject 'address': no such schema"):
        registry.register("customer", customer)
    address = '{"type":"record","name":"Address","fields":[%s]}'
    registry.register("address", NewSchema(address % ""))
    first = registry.register("customer", customer)
    assert registry.register("customer", customer) == first
    registry.register("address", NewSchema(address % '{"name":"city","type":"string","default":""}'))
    stored = registry.state.schema_by_id(first)
    assert stored.references == (Reference("Address", "address", 1),)
    assert "city" not in registry.state.resolve(stored.references)[0]
    assert registry.state.referenced_by("address", 1) == [first]
    second = registry.register("customer", customer)
    assert registry.state.schema_by_id(second).references == (Reference("Address", "address", 2),)


def test_modes(registry):
    with pytest.raises(NotPermitted) as error:
        registry.state.set_mode(None, "SOMETIMES")
    assert error.value.code == 42204
    registry.write(registry.state.set_mode("s", "READONLY"))
    with pytest.raises(NotPermitted) as error:
        registry.register("s", order(ID))
    assert error.value.code == 42205
    registry.write(registry.state.set_mode("s", "IMPORT"))
    assert registry.register("s", NewSchema('"int"', id=70, version=4)) == 70
    assert registry.state.versions("s") == [4]
    with pytest.raises(NotPermitted) as error:
        registry.register("s", NewSchema('"string"', id=70, version=5))
    assert error.value.code == 42207
    registry.write(registry.state.delete_mode("s")[1])
    assert registry.state.mode("s") == "READWRITE"
    assert registry.register("t", NewSchema('"string"')) == 71


@pytest.mark.parametrize(
    ("keytype", "value"),
    [
        ("NOOP", b'{"max_id":"5"}'),
        ("NOOP", b'{"max_id":2147483648}'),
        ("DELETE_SUBJECT", b'{"version":"1"}'),
        ("MODE", b'{"mode":[]}'),
        ("MODE", b'{"mode":null}'),
    ],
)
def test_a_record_that_no_registry_writes_changes_nothing(registry, keytype, value):
    """A mode that is a list was taken, and each registration was an internal error from then on."""
    registry.register("s", order(ID))
    with pytest.raises(CorruptData, match="_schemas: expected"):
        registry.state.apply(subject_key(keytype, "s"), value)
    assert registry.register("s", order(ID, NOTE_OR_NONE)) == 2


@pytest.mark.parametrize("mode", ["READONLY", "READONLY_OVERRIDE", "FORWARD"])
def test_what_is_registered_already_has_its_id_in_a_read_only_mode_too(registry, mode):
    """A producer registers its schema at each start: READONLY stopped those that changed nothing."""
    schema_id = registry.register("s", order(ID))
    registry.write(registry.state.set_mode(None, mode))
    assert registry.state.register("s", order(ID)) == Registration(schema_id, 1, [])
    for subject, schema in [("s", NewSchema('"string"')), ("t", order(ID))]:
        with pytest.raises(NotPermitted, match=f"Subject {subject} is in {mode.lower()} mode"):
            registry.register(subject, schema)


def test_readonly_override_is_read_only_and_goes_before_every_subjects_mode(registry):
    """It was taken, and did nothing."""
    registry.register("s", order(ID))
    registry.write(registry.state.set_mode("s", "READWRITE"))
    registry.write(registry.state.set_mode("t", "READONLY_OVERRIDE"))
    registry.register("s", NewSchema(order(ID, NOTE_OR_NONE).schema))
    with pytest.raises(NotPermitted, match="Subject t is in readonly_override mode"):
        registry.register("t", order(ID))
    registry.write(registry.state.set_mode(None, "READONLY_OVERRIDE"))
    for call in (
        lambda: registry.register("s", NewSchema('"string"')),
        lambda: registry.delete("s"),
        lambda: registry.delete("s", 1),
    ):
        with pytest.raises(NotPermitted, match="Subject s is in readonly_override mode") as error:
            call()
        assert error.value.code == 42205
    assert registry.state.mode("s") == "READONLY_OVERRIDE"
    assert registry.state.mode("s", default_to_global=False) == "READWRITE"


@pytest.fixture
def importing(registry):
    registry.write(registry.state.set_mode(None, "IMPORT"))
    return registry


def test_an_import_overwrites_no_version(importing):
    """The second was answered as stored, and the first's id was gone with its next reader."""
    importing.register("s", NewSchema('"string"', id=5, version=1))
    for other in (
        NewSchema('"bytes"', id=6, version=1),
        NewSchema('"string"', id=6, version=1),
        NewSchema('"int"', version=1),
    ):
        with pytest.raises(NotPermitted, match=r"^version 1 of s is another schema, or has another id \(5\)$") as error:
            importing.register("s", other)
        assert error.value.code == 42202
    assert [each.schema_by_id(5).schema for each in (importing.state, importing.compacted())] == ['"string"'] * 2


@pytest.mark.parametrize(
    "new",
    [
        NewSchema('"string"', id=9),
        NewSchema('"string"'),
        NewSchema('"string"', version=4),
        NewSchema('"string"', id=9, version=4),
    ],
)
def test_an_import_may_be_sent_twice(importing, new):
    assert importing.register("s", new) == importing.register("s", new)
    assert len(importing.state.versions("s")) == 1


def test_an_import_brings_a_deleted_version_back_with_its_id(importing):
    importing.register("other", NewSchema('"string"', id=3))
    importing.register("s", NewSchema('"string"', id=5, version=2))
    importing.delete("s")
    assert importing.register("s", NewSchema('"string"', version=2)) == 5
    assert importing.state.versions("s") == [2]


@pytest.mark.parametrize("number", [-2, 2**31 - 1, 2**40])
def test_an_import_chooses_numbers_that_others_can_follow(importing, number):
    """After an id of 2^31-1 there was none for anybody."""
    with pytest.raises(NotPermitted, match=f"^expected an id of 1 to 2147483646, found {number}$"):
        importing.register("s", NewSchema('"string"', id=number))
    with pytest.raises(NotPermitted, match=f"^expected a version of 1 to 2147483646, found {number}$"):
        importing.register("s", NewSchema('"string"', version=number))
    assert importing.register("s", NewSchema('"string"', id=2**31 - 2)) == 2**31 - 2


def test_what_is_not_there(registry):
    for call in (
        lambda: registry.state.version("s", 1),
        lambda: registry.state.find("s", order(ID)),
        lambda: registry.delete("s"),
    ):
        with pytest.raises(NotFound) as error:
            call()
        assert error.value.code == 40401
        assert error.value.hint == "there are no subjects"
    registry.register("s", order(ID))
    with pytest.raises(NotFound) as error:
        registry.state.find("s", NewSchema('"int"'))
    assert error.value.code == 40403
    with pytest.raises(NotFound) as error:
        registry.state.version("s", 2)
    assert error.value.code == 40402


def test_other_formats_are_refused_until_they_are_checked():
    with pytest.raises(InvalidSchema, match="schema type PROTOBUF is not supported"):
        State().register("s", NewSchema("message", schema_type="PROTOBUF"))


def test_what_later_registries_write_is_passed_over():
    state = State()
    state.apply(b'{"keytype":"CONTEXT","tenant":"default","context":".x","magic":0}', b"{}")
    state.apply(b'{"keytype":"NOOP","magic":0}', None)
    with pytest.raises(CorruptData):
        state.apply(b"nonsense", b"")


def test_an_unreadable_schema_keeps_its_id():
    state = State()
    with pytest.raises(CorruptData):
        state.apply(schema_key("s", 1), b'{"subject":"s","version":1,"id":7,"schema":"x","references":null}')
    assert state.register("t", order(ID)).id == 8


def test_a_schema_that_only_its_registry_understands_is_equal_to_itself():
    state = State()
    text = '{"type":"record","name":"R","fields":[{}]}'
    state.apply(schema_key("s", 1), schema_value(SchemaValue("s", 1, 7, text)))
    assert state.schema_by_id(7).schema == text
    assert state.register("t", order(ID)).id == 8


def taken_over(*values):
    state = State()
    for value in values:
        state.apply(schema_key(value.subject, value.version), schema_value(value))
    return state


ODD = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},%s]}'


@pytest.mark.parametrize(
    "odd",
    [
        '{"name":"day","type":{"type":"string","logicalType":"date"},"default":""}',  # ignored, says the specification
        '{"name":"note","type":["null","string"],"default":"x"}',  # may be of any branch since Avro 1.12
        '{"name":"größe","type":"int","default":0}',  # a letter, for Java
    ],
)
def test_what_another_registry_took_is_found_and_followed_though_we_would_refuse_it(odd):
    """Its subject was blocked: the same text was refused, as was every successor, with a message
    that blamed the new one.
    """
    state = taken_over(SchemaValue("s", 1, 7, ODD % odd))
    assert state.register("s", NewSchema(ODD % odd)).id == 7
    assert state.find("s", NewSchema(ODD % odd)).version == 1
    assert state.compatibility("s", NewSchema(ODD % odd)) == []
    assert state.register("s", order(ID)).version == 2
    reference = (Reference("Order", "s", 1),)
    assert state.register("t", NewSchema('{"type":"array","items":"Order"}', references=reference)).id == 8
    with pytest.raises(InvalidSchema):
        state.register("t", NewSchema(ODD % odd))
    state.apply(*state.set_mode("t", "IMPORT")[0])
    assert state.register("t", NewSchema(ODD % odd, id=7)).id == 7


def test_a_version_that_cannot_be_read_is_named():
    protobuf = SchemaValue("s", 1, 7, "message Order {}", "PROTOBUF")
    unknown = SchemaValue("s", 2, 8, '{"type":"array","items":"Nobody"}')
    state = taken_over(protobuf, unknown)
    assert state.register("s", NewSchema("message Order {}", "PROTOBUF")).id == 7
    with pytest.raises(InvalidSchema, match="schema type PROTOBUF is not supported"):
        state.register("s", NewSchema("message Other {}", "PROTOBUF"))
    state.apply(*state.set_config("s", {"compatibility": "FULL_TRANSITIVE"})[1][0])
    with pytest.raises(IncompatibleSchema) as error:
        state.register("s", order(ID))
    assert error.value.reasons == [
        "version 1 cannot be compared with: /: the schema type PROTOBUF is not supported; AVRO is",
        "version 2 cannot be compared with: /items: unknown type 'Nobody' (named types defined before it: none)",
    ]
    state.apply(*state.set_config("s", {"compatibility": "NONE"})[1][0])
    assert state.register("s", order(ID)).version == 3


def test_settings_that_another_registry_left_empty_are_not_there(registry):
    registry.state.apply(subject_key("CONFIG", "s"), b'{"compatibilityLevel":null,"normalize":false}')
    assert registry.register("s", order(ID)) == 1
    assert registry.state.config("s") == {"compatibilityLevel": "BACKWARD", "normalize": False}
    with pytest.raises(CorruptData, match=r"expected a compatibility level of NONE, .*, found 'SOME'"):
        registry.state.apply(subject_key("CONFIG", "s"), b'{"compatibilityLevel":"SOME"}')
    assert registry.register("s", order(ID, NOTE_OR_NONE)) == 2


subjects = st.sampled_from(["a", "b", "c"])
candidates = st.sampled_from(
    [order(ID), order(ID, NOTE_OR_NONE), order(ID, NOTE), NewSchema('"int"'), NewSchema('"long"')]
)
actions = st.one_of(
    st.tuples(st.just("register"), subjects, candidates),
    st.tuples(st.just("delete"), subjects, st.booleans()),
    st.tuples(st.just("delete_version"), subjects, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("configure"), subjects | st.none(), st.sampled_from(["NONE", "FULL", "BACKWARD_TRANSITIVE"])),
)


def visible(state):
    return {
        subject: [
            (n, state.version(subject, n, deleted=True).id, state.version(subject, n, deleted=True).deleted)
            for n in state.versions(subject, deleted=True)
        ]
        for subject in state.list_subjects(deleted=True)
    }


@given(st.lists(actions, max_size=25))
def test_the_topic_is_the_state_and_an_id_means_one_schema_for_ever(steps):
    registry = Registry()
    meaning = {}
    for step in steps:
        try:
            match step:
                case ("register", subject, new):
                    schema_id = registry.register(subject, new)
                    assert meaning.setdefault(schema_id, new.schema) == new.schema
                case ("delete", subject, permanent):
                    registry.delete(subject, permanent=permanent)
                case ("delete_version", subject, number, permanent):
                    registry.delete(subject, number, permanent=permanent)
                case ("configure", subject, level):
                    registry.configure(subject, level)
        except RegistryError:
            continue
    for state in (registry.rebuilt(), registry.compacted()):
        assert visible(state) == visible(registry.state)
        assert state.configs == registry.state.configs
        assert state.max_id == registry.state.max_id
        assert state.by_content == registry.state.by_content
