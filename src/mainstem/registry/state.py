"""The registry's state, and what it decides: no I/O.

Questions read the state. Commands check a request against it and return the records that would make it so; the store
appends them, reads them back, and gives each to `apply`.
So the state is exactly what the topic says, on every registry.
"""

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from mainstem.core.errors import CorruptData
from mainstem.registry import records, schema
from mainstem.registry.compatibility import Level, check
from mainstem.registry.errors import IncompatibleSchema, InvalidSchema, NotFound, NotPermitted
from mainstem.registry.records import Reference, SchemaValue

Records = list[tuple[bytes, bytes | None]]

OVERRIDE: Final = "READONLY_OVERRIDE"  # as the global mode, that of every subject, also of those with one of their own
MODES: Final = ("READWRITE", "READONLY", OVERRIDE, "IMPORT", "FORWARD")
READ_ONLY: Final = frozenset({"READONLY", OVERRIDE, "FORWARD"})
DEFAULT_CONFIG: Final = {"compatibilityLevel": Level.BACKWARD.value}
DEFAULT_MODE: Final = "READWRITE"
ID_LIMIT: Final = 2**31 - 1


class NewSchema(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a registration or a look-up, as clients send it."""

    schema: str
    schema_type: str | None = "AVRO"
    references: tuple[Reference, ...] | None = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    version: int | None = 0
    id: int | None = -1


class Registration(msgspec.Struct, frozen=True):
    """The answer to a registration and the records that make it true; none if it is so already."""

    id: int
    version: int
    records: Records


class State:
    """Subjects, versions, ids, settings; built by `apply` alone."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, SchemaValue]] = {}
        self.by_id: dict[int, SchemaValue] = {}  # any version that carries the id
        self.by_content: dict[str, int] = {}
        self.max_id = 0
        self.configs: dict[str | None, dict[str, Any]] = {}
        self.modes: dict[str | None, str] = {}
        self.unreadable = 0  # records of the topic that `apply` could not take

    # -- what the topic says

    def apply(self, key_bytes: bytes | None, value_bytes: bytes | None) -> None:
        """Take in one record of the topic.

        Raises:
            CorruptData: neither Confluent's format nor ours.
        """
        key = records.decode_key(key_bytes)
        match key.keytype:
            case "SCHEMA":
                self._apply_schema(key, value_bytes)
            case "DELETE_SUBJECT" | "CLEAR_SUBJECT" if value_bytes is not None:
                last = records.decode_deleted_subject(value_bytes).version
                for version, value in self.subjects.get(key.subject or "", {}).items():
                    if version <= last:
                        self.subjects[key.subject or ""][version] = msgspec.structs.replace(value, deleted=True)
            case "CONFIG":
                _set(self.configs, key.subject, None if value_bytes is None else _settings(value_bytes))
            case "MODE":
                mode = None if value_bytes is None else records.decode_mode(value_bytes).mode
                _set(self.modes, key.subject, mode)
            case "NOOP" if value_bytes is not None:
                self.max_id = max(self.max_id, records.decode_noop(value_bytes).max_id)
            case _:  # contexts and what later versions of Confluent's registry add: kept in the topic, unused here
                pass

    def _apply_schema(self, key: records.Key, value_bytes: bytes | None) -> None:
        subject, version = key.subject or "", key.version or 0
        if value_bytes is None:
            gone = self.subjects.get(subject, {}).pop(version, None)
            if not self.subjects.get(subject, True):
                del self.subjects[subject]
            if gone is not None:
                self._forget_id(gone)
            return
        # First of all: an id is taken even if what it stands for cannot be read.
        # All that may fail comes before a change.
        self.max_id = max(self.max_id, records.given_id(value_bytes))
        value = records.decode_schema(value_bytes)
        content = _content(value)
        self.subjects.setdefault(subject, {})[version] = value
        self.by_id[value.id] = value
        self.by_content.setdefault(content, value.id)

    def _forget_id(self, gone: SchemaValue) -> None:
        """A permanently deleted version takes its id along, unless another version has the same one."""
        heir = next((each for each in self._all_versions() if each.id == gone.id), None)
        if heir is not None:
            self.by_id[gone.id] = heir
            return
        self.by_id.pop(gone.id, None)
        if self.by_content.get(_content(gone)) == gone.id:
            del self.by_content[_content(gone)]

    def _all_versions(self) -> Iterable[SchemaValue]:
        return (value for versions in self.subjects.values() for value in versions.values())

    # -- questions

    def list_subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Subjects in order of their names: those with a live version, all, or only those without one."""

        def wanted(versions: Mapping[int, SchemaValue]) -> bool:
            alive = any(not value.deleted for value in versions.values())
            return not alive if deleted_only else alive or deleted

        return sorted(name for name, versions in self.subjects.items() if name.startswith(prefix) and wanted(versions))

    def versions(self, subject: str, *, deleted: bool = False, deleted_only: bool = False) -> list[int]:
        """Version numbers of a subject, ascending.

        Raises:
            NotFound: no such subject, or none of its versions is asked for.
        """
        every = self.subjects.get(subject, {})
        wanted = [
            n for n, value in sorted(every.items()) if (value.deleted if deleted_only else deleted or not value.deleted)
        ]
        if not wanted:
            raise NotFound(f"Subject '{subject}' not found.", code=40401, hint=self._subject_hint())
        return wanted

    def version(self, subject: str, number: int | None, *, deleted: bool = False) -> SchemaValue:
        """One version; None is the latest.

        Raises:
            NotFound: no such subject or version.
        """
        numbers = self.versions(subject, deleted=deleted)
        if number is None:
            number = numbers[-1]
        if number not in numbers:
            raise NotFound(f"Version {number} not found.", code=40402)
        return self.subjects[subject][number]

    def schema_by_id(self, schema_id: int) -> SchemaValue:
        """The schema of an id; soft-deleted ones too, since records still carry it.

        Raises:
            NotFound: the id was never given, or permanently deleted.
        """
        if schema_id not in self.by_id:
            raise NotFound(f"Schema {schema_id} not found", code=40403)
        return self.by_id[schema_id]

    def schema_by_guid(self, guid: str) -> SchemaValue:
        """The schema whose content has this guid (see `guid_of`)."""
        for value in self.by_id.values():
            if guid_of(value) == guid:
                return value
        raise NotFound(f"Schema {guid} not found", code=40403)

    def versions_of_id(self, schema_id: int, *, deleted: bool = False) -> list[SchemaValue]:
        """Every subject and version that carries the id."""
        self.schema_by_id(schema_id)
        found = [value for value in self._all_versions() if value.id == schema_id and (deleted or not value.deleted)]
        return sorted(found, key=lambda value: (value.subject, value.version))

    def referenced_by(self, subject: str, number: int) -> list[int]:
        """Ids of the schemas that use this version, ascending."""
        found = {
            value.id
            for value in self._all_versions()
            if not value.deleted and any(r.subject == subject and r.version == number for r in value.references)
        }
        return sorted(found)

    def resolve(self, references: Iterable[Reference]) -> tuple[str, ...]:
        """The texts that `references` lead to, also over several steps, dependencies first, each once.

        Raises:
            InvalidSchema: one of them does not exist.
        """
        texts: dict[tuple[str, int], str] = {}

        def visit(reference: Reference) -> None:
            number = None if reference.version == -1 else reference.version
            try:
                value = self.version(reference.subject, number, deleted=True)
            except NotFound:
                where = f"version {reference.version} of subject {reference.subject!r}"
                raise InvalidSchema(f"the reference {reference.name!r} leads to {where}: no such schema") from None
            if (value.subject, value.version) not in texts:
                for inner in value.references:
                    visit(inner)
                texts[value.subject, value.version] = value.schema

        for reference in references:
            visit(reference)
        return tuple(texts.values())

    def config(self, subject: str | None, *, default_to_global: bool = True) -> dict[str, Any]:
        """The settings of a subject, or the global ones (subject None).

        Raises:
            NotFound: the subject has none of its own and `default_to_global` is off.
        """
        own = self.configs.get(subject)
        if own is None and subject is not None and not default_to_global:
            message = f"Subject '{subject}' does not have subject-level compatibility configured"
            raise NotFound(message, code=40408)
        return {**DEFAULT_CONFIG, **(self.configs.get(None) or {}), **(own or {})}

    def mode(self, subject: str | None, *, default_to_global: bool = True) -> str:
        """The mode of a subject, or the global one.

        Raises:
            NotFound: the subject has none of its own and `default_to_global` is off.
        """
        if default_to_global and self.modes.get(None) == OVERRIDE:
            return OVERRIDE
        if subject in self.modes:
            return self.modes[subject]
        if subject is not None and not default_to_global:
            raise NotFound(f"Subject '{subject}' does not have subject-level mode configured", code=40409)
        return self.modes.get(None, DEFAULT_MODE)

    def level(self, subject: str) -> Level:
        """The compatibility level that holds for `subject`: its own, else the global one."""
        return Level(self.config(subject)["compatibilityLevel"])

    def find(self, subject: str, new: NewSchema, *, deleted: bool = False) -> SchemaValue:
        """The version of `subject` that has this very schema.

        Raises:
            NotFound: the subject (40401) or the schema in it (40403) does not exist.
            InvalidSchema: it is not a schema at all.
        """
        numbers = self.versions(subject, deleted=deleted)
        candidate = self._candidate(new, subject)
        there = _same(candidate, [self.subjects[subject][number] for number in numbers])
        if there is not None:
            return there
        self._check_schema(candidate, new)
        raise NotFound("Schema not found", code=40403)

    def compatibility(self, subject: str, new: NewSchema, against: int | str | None = "all") -> list[str]:
        """Why `new` breaks the subject's level; empty if it does not.

        `against` is a version, None for the latest, or "all" for what a registration would check.

        Raises:
            NotFound: `against` names a version that does not exist.
            InvalidSchema: `new` is not a schema.
        """
        level = self.level(subject)
        candidate = self._candidate(new, subject)
        alive = self._alive(subject)
        if _same(candidate, alive) is None:
            self._check_schema(candidate, new)
        if against != "all":
            alive = [self.version(subject, against)]  # type: ignore[arg-type]  # int or None here
        return self._check(candidate, alive, level)

    def _check(self, candidate: SchemaValue, older: list[SchemaValue], level: Level) -> list[str]:
        if level is Level.NONE or not older:
            return []
        needed = older if level.transitive else older[-1:]
        parsed, unreadable = [], []
        for value in needed:
            try:
                parsed.append((value.version, self._stored(value)))
            except InvalidSchema as error:
                unreadable.append(f"version {value.version} cannot be compared with: {error}")
        return unreadable + check(self._stored(candidate), parsed, level)

    def _stored(self, value: SchemaValue) -> schema.AvroType:
        """Raises InvalidSchema: another registry took it, and we cannot read it."""
        _check_type(value.schema_type)
        return schema.parse(value.schema, self.resolve(value.references), lenient=True)

    def _alive(self, subject: str) -> list[SchemaValue]:
        return [value for _, value in sorted(self.subjects.get(subject, {}).items()) if not value.deleted]

    # -- commands: the records that would make it so

    def register(self, subject: str, new: NewSchema) -> Registration:
        """A version for this schema in `subject`: the one it has,
        or a new one with the id of the same content elsewhere.

        Raises:
            InvalidSchema, IncompatibleSchema, NotPermitted: as their names say.
        """
        if not subject:
            raise NotPermitted("the subject's name is empty", code=42208)
        candidate = self._candidate(new, subject)
        every = self.subjects.get(subject, {})
        if self.mode(subject) == "IMPORT":
            self._check_schema(candidate, new, lenient=True)  # another registry took it, by its own rules
            return self._import(candidate, new, every)
        if (new.id or -1) > 0:
            raise NotPermitted(f"Subject {subject} is not in import mode: an id cannot be chosen", code=42205)
        alive = self._alive(subject)
        there = _same(candidate, alive)
        if there is not None:
            return Registration(there.id, there.version, [])  # serializers ask at each start, read-only or not
        self._check_writable(subject)
        self._check_schema(candidate, new)
        reasons = self._check(candidate, alive, self.level(subject))
        if reasons:
            level = self.level(subject)
            message = (
                f'Schema being registered is incompatible with an earlier schema for subject "{subject}" ({level}): '
            )
            raise IncompatibleSchema(message + "; ".join(reasons), reasons)
        version = max(every, default=0) + 1
        if new.version not in {None, 0, -1, version}:
            raise NotPermitted(f"the next version of {subject} is {version}, found {new.version}", code=42202)
        return self._registration(candidate, version, self.by_content.get(_content(candidate)) or self._next_id())

    def _import(self, candidate: SchemaValue, new: NewSchema, every: Mapping[int, SchemaValue]) -> Registration:
        """Ids and versions are the caller's, so that records written elsewhere keep their meaning here;
        what is there stays.
        """
        wanted_id = _chosen(new.id, "an id", code=42207)
        wanted_version = _chosen(new.version, "a version", code=42202)
        content = _content(candidate)
        owner = self.by_id.get(wanted_id)
        if owner is not None and _content(owner) != content:
            raise NotPermitted(
                f"id {wanted_id} belongs to another schema ({owner.subject} {owner.version})", code=42207
            )

        def is_it(value: SchemaValue) -> bool:
            return _content(value) == content and wanted_id in {0, value.id}

        if wanted_version:
            there = every.get(wanted_version)
            if there is not None and not is_it(there):
                message = f"version {wanted_version} of {candidate.subject} is another schema, or has another id"
                raise NotPermitted(f"{message} ({there.id})", code=42202)
        else:
            there = next((value for value in every.values() if is_it(value) and not value.deleted), None)
        if there is not None and not there.deleted:  # sent twice
            return Registration(there.id, there.version, [])
        version = wanted_version or max(every, default=0) + 1
        known_id = self.by_content.get(content) if there is None else there.id  # a deleted version that comes back
        schema_id = wanted_id or known_id or self._next_id()
        return self._registration(candidate, version, schema_id)

    def _registration(self, candidate: SchemaValue, version: int, schema_id: int) -> Registration:
        value = msgspec.structs.replace(candidate, version=version, id=schema_id)
        return Registration(
            schema_id, version, [(records.schema_key(value.subject, version), records.schema_value(value))]
        )

    def _next_id(self) -> int:
        if self.max_id >= ID_LIMIT:
            raise NotPermitted("all schema ids are taken (4 bytes on the wire)", code=50001)
        return self.max_id + 1

    def delete_version(self, subject: str, number: int | None, *, permanent: bool = False) -> tuple[int, Records]:
        """Soft: no longer the latest, still readable by id. Permanent: gone, and only after a soft deletion.

        Without a `number`, the latest that is not deleted.

        Raises:
            NotFound: no such subject or version, or not yet (already) soft-deleted.
            NotPermitted: a schema that is alive refers to it, or the subject is read-only.
        """
        self._check_writable(subject)
        value = self.version(subject, number, deleted=number is not None)
        if permanent and not value.deleted:
            message = (
                f"Subject '{subject}' Version {value.version} was not deleted first before being permanently deleted"
            )
            raise NotFound(message, code=40407)
        if not permanent and value.deleted:
            message = f"Subject '{subject}' Version {value.version} was soft deleted. Set permanent=true to delete permanently"
            raise NotFound(message, code=40406)
        self._check_unreferenced([value])
        if permanent:
            return value.version, [self._mark(), (records.schema_key(subject, value.version), None)]
        gone = msgspec.structs.replace(value, deleted=True)
        return value.version, [(records.schema_key(subject, value.version), records.schema_value(gone))]

    def delete_subject(self, subject: str, *, permanent: bool = False) -> tuple[list[int], Records]:
        """All versions of a subject; its own settings go with a permanent deletion.

        Raises:
            NotFound, NotPermitted: as for `delete_version`.
        """
        self._check_writable(subject)
        every = self.subjects.get(subject)
        if not every:
            raise NotFound(f"Subject '{subject}' not found.", code=40401, hint=self._subject_hint())
        alive = [number for number, value in sorted(every.items()) if not value.deleted]
        if permanent and alive:
            message = f"Subject '{subject}' was not deleted first before being permanently deleted"
            raise NotFound(message, code=40405)
        if not permanent and not alive:
            message = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
            raise NotFound(message, code=40404)
        self._check_unreferenced(every.values())
        if not permanent:
            value = records.object_value({"subject": subject, "version": alive[-1]})
            return alive, [(records.subject_key("DELETE_SUBJECT", subject), value)]
        written: Records = [self._mark(), *((records.schema_key(subject, number), None) for number in sorted(every))]
        if subject in self.configs:
            written.append((records.subject_key("CONFIG", subject), None))
        if subject in self.modes:
            written.append((records.subject_key("MODE", subject), None))
        return sorted(every), written

    def set_config(self, subject: str | None, changes: Mapping[str, Any]) -> tuple[dict[str, Any], Records]:
        """The settings after laying `changes` over a subject's own, or the global ones (subject None).

        Raises:
            NotPermitted: no such compatibility level (42203).
        """
        changes = dict(changes)
        if "compatibility" in changes:  # PUT says `compatibility`, GET and the topic `compatibilityLevel`
            changes["compatibilityLevel"] = changes.pop("compatibility")
        level = changes.get("compatibilityLevel")
        if level is not None and (not isinstance(level, str) or level not in Level.__members__):
            known = ", ".join(Level)
            raise NotPermitted(f"Invalid compatibility level {level!r}. Valid values are {known}", code=42203)
        settings = {**(self.configs.get(subject) or {}), **{k: v for k, v in changes.items() if v is not None}}
        return settings, [(records.subject_key("CONFIG", subject), records.object_value(settings))]

    def delete_config(self, subject: str | None) -> tuple[dict[str, Any], Records]:
        """Back to the level above; returns the settings that were removed."""
        if subject not in self.configs:
            if subject is None:
                return dict(DEFAULT_CONFIG), []
            raise NotFound(f"Subject '{subject}' does not have subject-level compatibility configured", code=40408)
        return self.configs[subject], [(records.subject_key("CONFIG", subject), None)]

    def set_mode(self, subject: str | None, mode: str, *, force: bool = False) -> Records:
        """Raises NotPermitted: no such mode (42204), or IMPORT where ids were given already (42205)."""
        if mode not in MODES:
            raise NotPermitted(f"Invalid mode {mode!r}. Valid values are {', '.join(MODES)}", code=42204)
        if mode == "IMPORT" and not force:
            taken = self.list_subjects() if subject is None else [subject] if subject in self.subjects else []
            if taken:
                raise NotPermitted(f"Cannot import since found existing subjects: {', '.join(taken[:5])}", code=42205)
        return [(records.subject_key("MODE", subject), records.object_value({"mode": mode}))]

    def delete_mode(self, subject: str | None) -> tuple[str, Records]:
        """Back to the level above; returns the mode that was removed."""
        if subject not in self.modes:
            if subject is None:
                return DEFAULT_MODE, []
            raise NotFound(f"Subject '{subject}' does not have subject-level mode configured", code=40409)
        return self.modes[subject], [(records.subject_key("MODE", subject), None)]

    # -- parts of commands

    def _candidate(self, new: NewSchema, subject: str) -> SchemaValue:
        """`new` in canonical form, without version and id;
        not checked yet, since an equal one may be stored that we refuse.
        """
        references = tuple(self._pinned(reference) for reference in new.references or ())
        kind = new.schema_type or "AVRO"
        text = _canonical_or_same(new.schema) if kind == "AVRO" else new.schema
        metadata, rule_set = new.metadata or None, new.rule_set or None
        return SchemaValue(subject, 0, 0, text, kind, references, metadata, rule_set)

    def _check_schema(self, candidate: SchemaValue, new: NewSchema, *, lenient: bool = False) -> None:
        """Raises InvalidSchema: `candidate`, made of `new`, is not what the registry takes."""
        _check_type(candidate.schema_type)
        schema.parse(new.schema, self.resolve(candidate.references), lenient=lenient)
        schema.canonical(new.schema)

    def _pinned(self, reference: Reference) -> Reference:
        """Version -1 is the newest one there is now: what is stored names it, so that an id means the same for ever."""
        if reference.version != -1:
            return reference
        try:
            newest = self.version(reference.subject, None).version
        except NotFound:
            where = f"the newest version of subject {reference.subject!r}"
            raise InvalidSchema(f"the reference {reference.name!r} leads to {where}: no such schema") from None
        return msgspec.structs.replace(reference, version=newest)

    def _check_writable(self, subject: str) -> None:
        mode = self.mode(subject)
        if mode in READ_ONLY:
            raise NotPermitted(f"Subject {subject} is in {mode.lower()} mode", code=42205)

    def _check_unreferenced(self, values: Iterable[SchemaValue]) -> None:
        for value in values:
            users = self.referenced_by(value.subject, value.version)
            if users:
                message = f"One or more references exist to {value.subject} version {value.version}: schema ids {users}"
                raise NotPermitted(message, code=42206)

    def _mark(self) -> tuple[bytes, bytes]:
        """Remembers the highest id given: compaction forgets a permanently deleted schema,
        its id must not come back.
        """
        return records.NOOP_KEY, records.object_value({"max_id": self.max_id})

    def _subject_hint(self) -> str:
        known = self.list_subjects()
        return (
            f"subjects: {', '.join(known[:20])}{' ...' if len(known) > 20 else ''}"
            if known
            else "there are no subjects"
        )


def guid_of(value: SchemaValue) -> str:
    """An id of the content alone, the same on every registry of ours."""
    return str(uuid.UUID(bytes=hashlib.md5(_content(value).encode(), usedforsecurity=False).digest()))


def _content(value: SchemaValue) -> str:
    """What makes two schemas one: everything but subject, version and id.
    Another registry's text is brought to our form.
    """
    return _content_of(value, _canonical_text(value.schema) if value.schema_type == "AVRO" else value.schema)


def _content_of(value: SchemaValue, text: str) -> str:
    parts = [value.schema_type, text, msgspec.to_builtins(value.references), value.metadata, value.rule_set]
    return msgspec.json.encode(parts).decode()


def _same(candidate: SchemaValue, stored: list[SchemaValue]) -> SchemaValue | None:
    """The newest of `stored` that is `candidate`, apart from its version and id."""
    content = _content_of(
        candidate, candidate.schema
    )  # in our form already; what we may refuse need not stay in a cache
    return next((value for value in reversed(stored) if _content(value) == content), None)


def _check_type(schema_type: str) -> None:
    if schema_type != "AVRO":
        raise InvalidSchema(f"the schema type {schema_type} is not supported; AVRO is")


@lru_cache(maxsize=8192)
def _canonical_text(text: str) -> str:
    return _canonical_or_same(text)


def _canonical_or_same(text: str) -> str:
    try:
        return schema.canonical(text)
    except (InvalidSchema, AttributeError, KeyError, TypeError, ValueError):
        return text  # written by another registry, which took it: then it is equal to itself only


def _chosen(number: int | None, what: str, *, code: int) -> int:
    """The number that an import asks for; 0 if it leaves it to us. The highest is not given: there would be no next."""
    if number in {None, 0, -1}:
        return 0
    if number not in range(1, ID_LIMIT):
        raise NotPermitted(f"expected {what} of 1 to {ID_LIMIT - 1}, found {number}", code=code)
    return number


def _settings(value: bytes) -> dict[str, Any]:
    """A CONFIG record's; another registry may write null for what it does not set.

    Raises:
        CorruptData: no object, or a compatibility level that there is not.
    """
    settings = {name: setting for name, setting in records.decode_object(value).items() if setting is not None}
    level = settings.get("compatibilityLevel", Level.NONE)
    if level not in list(Level):
        raise CorruptData(f"_schemas: expected a compatibility level of {', '.join(Level)}, found {level!r}")
    return settings


def _set(table: dict[str | None, Any], key: str | None, value: Any | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
