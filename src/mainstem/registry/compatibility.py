"""Will data written with one Avro schema be readable with another, and if not, where does it break?

The rules are those of Avro's schema resolution (https://avro.apache.org/docs/1.12.0/specification/#schema-resolution),
with the error types that Confluent's registry gives, and stricter in one point: a logical type is part of the
agreement. `timestamp-millis` read as `timestamp-micros`, or a decimal of scale 2 read with scale 4, raises no error in
any Avro library and is wrong by a factor: we call it incompatible. Dropping a logical type (read the plain number) is
compatible, adding one is not: a plain `string` need not be a `uuid`.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import Final

import msgspec

from mainstem.registry.schema import AvroField, AvroType, cut, pointer_to, several


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
MOST: Final = 20  # reasons that are told; schemas of a megabyte have 20,000 places to break


def check(new: AvroType, old: Sequence[tuple[int, AvroType]], level: Level) -> list[str]:
    """Why `new` breaks `level` against the versions in `old` (version number, schema; oldest first);
    empty if it does not.

    Each reason is one line: which way reading fails, against which version, the kind, the JSON pointer, the cause.
    There are at most `MOST`, and a last line where these are not all.
    """
    reasons: list[str] = []
    for version, schema in reversed(old if level.transitive else old[-1:]):
        if level.backward:
            lead = f"the new schema cannot read data of version {version}"
            reasons += [f"{lead}: {problem}" for problem in can_read(new, schema)]
        if level.forward:
            lead = f"readers with version {version} cannot read data of the new schema"
            reasons += [f"{lead}: {problem}" for problem in can_read(schema, new)]
        if len(reasons) > MOST:
            return [*reasons[:MOST], "and more"]
    return reasons


def can_read(reader: AvroType, writer: AvroType) -> list[Incompatibility]:
    """Where data written with `writer` could not be read with `reader`; empty if all of it can.

    Of more than `MOST` places, the first, and at least one more than those.
    """
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
        self.unions: dict[int, _Branches] = {}
        self.written: dict[int, dict[str, AvroField]] = {}

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
        problems = list(islice(dict.fromkeys(self.resolve(reader, writer)), MOST + 1))
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
            return _first(self.union_branch(reader, branch) for branch in writer.branches)
        if reader.kind == "union":
            return self.union_branch(reader, writer)
        if reader.kind != writer.kind:
            return self.promotion(reader, writer)
        if reader.name and not same_name(reader, writer):
            reason = f"expected {cut(reader.name, 100)}, the writer has {cut(writer.name, 100)}"
            return [_problem("NAME_MISMATCH", reader, writer, reason)]
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
        branches = self.unions.get(id(reader))
        if branches is None:
            branches = self.unions[id(reader)] = _Branches(reader)
        same = branches.same(writer)
        if same is not None:
            return self.compare(same, writer)
        if any(not self.compare(branch, writer) for branch in branches.promoting(writer)):
            return []
        return [_problem("MISSING_UNION_BRANCH", reader, writer, f"the writer's {writer} fits none of the {reader}")]

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
        written = self.written.get(id(writer))
        if written is None:
            written = self.written[id(writer)] = {field.name: field for field in writer.fields}
        return _first(self.fields(reader, writer, written))

    def fields(
        self, reader: AvroType, writer: AvroType, written: dict[str, AvroField]
    ) -> Iterator[list[Incompatibility]]:
        claimed: set[str] = set()
        for field in reader.fields:
            sources = sources_of(field, written)
            if len(sources) > 1 or (sources and sources[0].name in claimed):
                # Libraries disagree here: some take the name first, some the alias,
                # some let one of two readers go empty.
                rivals = several([source.name for source in sources])
                reason = f"the field {cut(field.name, 100)!r} and its aliases find more than one match, or one taken already: {rivals}"
                yield [Incompatibility("AMBIGUOUS_ALIAS", field.pointer, writer.pointer, reason)]
            elif sources:
                claimed.add(sources[0].name)
                yield self.compare(field.type, sources[0].type)
            elif not field.has_default:
                reason = f"the field {cut(field.name, 100)!r} has no default and the writer does not have it"
                kind = "READER_FIELD_MISSING_DEFAULT_VALUE"
                yield [Incompatibility(kind, field.pointer, writer.pointer, reason)]

    def enum(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        if reader.symbol_default is not None or writer.symbol_set <= reader.symbol_set:
            return []
        missing = [symbol for symbol in writer.symbols if symbol not in reader.symbol_set]
        reason = f"the writer's symbols {several(missing)} are unknown and the enum has no default"
        place = pointer_to(reader.pointer, "symbols")
        return [Incompatibility("MISSING_ENUM_SYMBOLS", place, pointer_to(writer.pointer, "symbols"), reason)]


class _Branches:
    """The branches of a reader's union by what makes one the writer's: a union of 1 MB has 20,000 of them."""

    def __init__(self, union: AvroType) -> None:
        self.names: dict[tuple[str, str], AvroType] = {}
        self.short_names: dict[tuple[str, str], tuple[int, AvroType]] = {}
        self.aliases: dict[tuple[str, str], tuple[int, AvroType]] = {}
        for number, branch in enumerate(union.branches):
            self.names[branch.kind, branch.name] = branch
            self.short_names.setdefault((branch.kind, branch.short_name), (number, branch))
            for alias in branch.aliases:
                self.aliases.setdefault((branch.kind, alias), (number, branch))

    def same(self, writer: AvroType) -> AvroType | None:
        """The branch of the writer's very name, else the first that is of the `same_name`."""
        exact = self.names.get((writer.kind, writer.name))
        if exact is not None:
            return exact
        found = (self.short_names.get((writer.kind, writer.short_name)), self.aliases.get((writer.kind, writer.name)))
        return min(filter(None, found), key=itemgetter(0), default=(0, None))[1]

    def promoting(self, writer: AvroType) -> Iterator[AvroType]:
        """Those that may read it without being the same."""
        return filter(None, (self.names.get((kind, "")) for kind in PROMOTIONS.get(writer.kind, ())))


def same_name(reader: AvroType, writer: AvroType) -> bool:
    """Named types are matched without their namespace, or by an alias of the reader's; unnamed ones always."""
    return reader.short_name == writer.short_name or writer.name in reader.aliases


def sources_of(field: AvroField, written: dict[str, AvroField]) -> list[AvroField]:
    """The writer's fields that `field` may read, by its name and its aliases."""
    return [written[name] for name in dict.fromkeys((field.name, *field.aliases)) if name in written]


def _problem(kind: str, reader: AvroType, writer: AvroType, reason: str) -> Incompatibility:
    return Incompatibility(kind, reader.pointer, writer.pointer, reason)


def _first(groups: Iterable[list[Incompatibility]]) -> list[Incompatibility]:
    """Those of `groups` one after another, each once, but no group after there are more than will be told."""
    found: dict[Incompatibility, None] = {}
    for group in groups:
        found.update(dict.fromkeys(group))
        if len(found) > MOST:
            break
    return list(found)
