"""Will data written with one Avro schema be readable with another, and if not, where does it break?

The rules are those of Avro's schema resolution (https://avro.apache.org/docs/1.12.0/specification/#schema-resolution),
with the error types that Confluent's registry gives, and stricter in one point: a logical type is part of the
agreement. `timestamp-millis` read as `timestamp-micros`, or a decimal of scale 2 read with scale 4, raises no error in
any Avro library and is wrong by a factor: we call it incompatible. Dropping a logical type (read the plain number) is
compatible, adding one is not: a plain `string` need not be a `uuid`.
"""

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from mainstem.registry.schema import AvroField, AvroType, pointer_to


class Level(StrEnum):
    """What a subject promises about its versions. `BACKWARD`: the new schema reads old data. `FORWARD`:
    old readers read new data.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Against all earlier versions, not only the latest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))


class Incompatibility(msgspec.Struct, frozen=True):
    """One place where reading fails. `pointer` is in the reader's schema, `writer_pointer` in the writer's."""

    kind: str
    pointer: str
    writer_pointer: str
    reason: str

    def __str__(self) -> str:
        """One line: the kind, the place, the reason."""
        return f"{self.kind} at {self.pointer or '/'}: {self.reason}"


# writer -> what else may read it (besides itself)
PROMOTIONS: Final = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


_Pair = tuple[int, int]
_NOTHING: Final = sys.maxsize


def check(new: AvroType, old: Sequence[tuple[int, AvroType]], level: Level) -> list[str]:
    """Why `new` breaks `level` against the versions in `old` (version number, schema; oldest first);
    empty if it does not.

    Each reason is one line: which way reading fails, against which version, the kind, the JSON pointer, the cause.
    """
    reasons: list[str] = []
    for version, schema in reversed(old if level.transitive else old[-1:]):
        if level.backward:
            lead = f"the new schema cannot read data of version {version}"
            reasons += [f"{lead}: {problem}" for problem in can_read(new, schema)]
        if level.forward:
            lead = f"readers with version {version} cannot read data of the new schema"
            reasons += [f"{lead}: {problem}" for problem in can_read(schema, new)]
    return reasons


def can_read(reader: AvroType, writer: AvroType) -> list[Incompatibility]:
    """Every place where data written with `writer` could not be read with `reader`; empty if all of it can."""
    return _Comparison().compare(reader, writer)


class _Comparison:
    """A pair under way is taken as readable: that is how a recursive schema comes to an end.

    Every pair is compared once, and every reason is there once, however often a named type is used: the uses of uses of
    a type are more than there are numbers for.
    """

    def __init__(self) -> None:
        self.verdicts: dict[_Pair, list[Incompatibility]] = {}
        self.under_way: dict[_Pair, int] = {}  # how many were under way before
        self.assuming: dict[_Pair, int] = {}  # found readable if the pair is that was under way at this depth
        self.rests_on = _NOTHING  # the least depth that what was compared last rests on

    def compare(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        pair = (id(reader), id(writer))
        if pair in self.verdicts:
            self.rests_on = min(self.rests_on, self.assuming.get(pair, _NOTHING))
            return self.verdicts[pair]
        if pair in self.under_way:
            self.rests_on = min(self.rests_on, self.under_way[pair])
            return []
        depth = self.under_way[pair] = len(self.under_way)
        before, outer, self.rests_on = len(self.assuming), self.rests_on, _NOTHING
        problems = list(dict.fromkeys(self.resolve(reader, writer)))
        del self.under_way[pair]
        self.verdicts[pair] = problems
        if problems or self.rests_on >= depth:
            self._settle(before, readable=not problems)
            self.rests_on = outer
        else:
            self.assuming[pair] = self.rests_on
            self.rests_on = min(outer, self.rests_on)
        return problems

    def _settle(self, before: int, *, readable: bool) -> None:
        """What was found readable inside of a pair, and may rest on the assumption that the pair is:
        it stays, or is forgotten.
        """
        while len(self.assuming) > before:
            pair, _ = self.assuming.popitem()
            if not readable:
                del self.verdicts[pair]

    def resolve(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        if writer.kind == "union":
            return list(_flat(self.union_branch(reader, branch) for branch in writer.branches))
        if reader.kind == "union":
            return self.union_branch(reader, writer)
        if reader.kind != writer.kind:
            return self.promotion(reader, writer)
        if reader.name and not same_name(reader, writer):
            return [_problem("NAME_MISMATCH", reader, writer, f"expected {reader.name}, the writer has {writer.name}")]
        problems = self.logical(reader, writer)
        match reader.kind:
            case "record":
                problems += self.record(reader, writer)
            case "enum":
                problems += self.enum(reader, writer)
            case "fixed" if reader.size != writer.size:
                reason = f"expected {reader.size} bytes, the writer has {writer.size}"
                problems.append(_problem("FIXED_SIZE_MISMATCH", reader, writer, reason))
            case "array" | "map" if reader.items is not None and writer.items is not None:
                problems += self.compare(reader.items, writer.items)
        return problems

    def union_branch(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        """One type of the writer against all that the reader offers: the branch that readers would take must fit.

        Readers take the first branch of the very same type, else the first that fits by promotion: a later branch
        cannot help when the one of the same type and name fails inside. A branch of the same namespace goes before
        those of the same short name, as in Java, and so in Spark; otherwise a schema could not read its own data.
        """
        if reader.kind != "union":
            return self.compare(reader, writer)
        same = [branch for branch in reader.branches if branch.kind == writer.kind and same_name(branch, writer)]
        same = [branch for branch in same if branch.name == writer.name] or same
        for branch in same or reader.branches:
            problems = self.compare(branch, writer)
            if not problems:
                return []
            if same:
                return problems
        reason = f"the writer's {writer} fits none of the {reader}"
        return [_problem("MISSING_UNION_BRANCH", reader, writer, reason)]

    def promotion(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        if reader.kind not in PROMOTIONS.get(writer.kind, ()):
            return [_problem("TYPE_MISMATCH", reader, writer, f"expected {reader}, the writer has {writer}")]
        if reader.logical or writer.logical:
            reason = f"expected {reader}, the writer has {writer}: no promotion between logical types"
            return [_problem("LOGICAL_TYPE_MISMATCH", reader, writer, reason)]
        return []

    def logical(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        if reader.logical == writer.logical == "decimal":
            fits = reader.scale == writer.scale and reader.precision >= writer.precision
        else:
            fits = reader.logical in {writer.logical, ""}
        if fits:
            return []
        return [_problem("LOGICAL_TYPE_MISMATCH", reader, writer, f"expected {reader}, the writer has {writer}")]

    def record(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        problems: list[Incompatibility] = []
        written = {field.name: field for field in writer.fields}
        claimed: set[str] = set()
        for field in reader.fields:
            sources = sources_of(field, written)
            if len(sources) > 1 or (sources and sources[0].name in claimed):
                # Libraries disagree here: some take the name first, some the alias,
                # some let one of two readers go empty.
                rivals = ", ".join(source.name for source in sources)
                reason = (
                    f"the field {field.name!r} and its aliases find more than one match, or one taken already: {rivals}"
                )
                problems.append(Incompatibility("AMBIGUOUS_ALIAS", field.pointer, writer.pointer, reason))
            elif sources:
                claimed.add(sources[0].name)
                problems += self.compare(field.type, sources[0].type)
            elif not field.has_default:
                reason = f"the field {field.name!r} has no default and the writer does not have it"
                kind = "READER_FIELD_MISSING_DEFAULT_VALUE"
                problems.append(Incompatibility(kind, field.pointer, writer.pointer, reason))
        return problems

    def enum(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        missing = [symbol for symbol in writer.symbols if symbol not in reader.symbol_set]
        if not missing or reader.symbol_default is not None:
            return []
        reason = f"the writer's symbols {', '.join(missing)} are unknown and the enum has no default"
        place = pointer_to(reader.pointer, "symbols")
        return [Incompatibility("MISSING_ENUM_SYMBOLS", place, pointer_to(writer.pointer, "symbols"), reason)]


def same_name(reader: AvroType, writer: AvroType) -> bool:
    """Named types are matched without their namespace, or by an alias of the reader's; unnamed ones always."""
    return reader.short_name == writer.short_name or writer.name in reader.aliases


def sources_of(field: AvroField, written: dict[str, AvroField]) -> list[AvroField]:
    """The writer's fields that `field` may read, by its name and its aliases."""
    return [written[name] for name in dict.fromkeys((field.name, *field.aliases)) if name in written]


def _problem(kind: str, reader: AvroType, writer: AvroType, reason: str) -> Incompatibility:
    return Incompatibility(kind, reader.pointer, writer.pointer, reason)


def _flat(groups: Iterable[list[Incompatibility]]) -> Iterable[Incompatibility]:
    for group in groups:
        yield from group
