"""Search in rows, with tantivy: a document per key of a topic, or per record where records have no keys.

    field      of a document                      of the state
    __id       hash of topic and key              "applied"
    __place    hash of topic and partition        -
    __row      [topic, partition, offset, row]    [applied as JSON]
    columns    for the search, not stored         -

The state is a document, too: replaced in the commit of those that lead to it, as the engine's own payload of a commit
cannot be reached from Python. A commit takes 10 ms and more, however little is in it, so whoever applies says when.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.core.errors import UserError
from mainstem.core.files import make_directory
from mainstem.core.prepared import prepared
from mainstem.serve.directory import NAME, Description, IndexDirectory
from mainstem.serve.errors import BadQuery, IndexDamaged, UnfitChanges
from mainstem.serve.index import MOST_BYTES, Applied, Change, Row, after_truncates
from mainstem.serve.rows import UNPACKABLE, pack, unpack

if TYPE_CHECKING:
    from tantivy import Document, Query, Schema, Searcher

KIND = "search"
MOST_HITS = 10_000
"""How far a search can be read: the engine holds all hits up to there in memory."""
MOST_WORDS = 2 << 10
"""Bytes of a query: the parser takes some of the stack for each ( and a minute for a chain of 15,000 NOT."""
DEEPEST = 50
"""Parentheses inside of each other in a query."""

_STATE = "applied"  # no hash
_HEAP_BYTES = 64 << 20
_NUMBERS = range(-(2**63), 2**63)


class Hit(msgspec.Struct, frozen=True):
    """A row that was found, and the record that it comes from; a higher score fits better."""

    row: Row
    topic: str
    partition: int
    offset: int
    score: float


class Hits(msgspec.Struct, frozen=True):
    """What a search has found: how many in all, and those that were asked for, the best first; `cut`: not all of these,
    whose rows are too large together.
    """

    total: int
    hits: list[Hit]
    cut: bool = False


class SearchIndex:
    """Documents of one or more topics; what is applied waits for `commit`."""

    failure = None

    def __init__(self, directory: IndexDirectory, fields: Mapping[str, str]) -> None:
        self.directory = directory
        self.fields = dict(fields)
        self._pending: Applied | None = None
        self._served: tuple[Searcher, Applied | None]  # together, so that a reader never sees one without the other

    @staticmethod
    def open(path: Path, fields: Mapping[str, str]) -> "SearchIndex":
        """Open the index, or begin one; `fields`: column -> text, keyword, integer, float, boolean or time.

        Raises:
            UserError: there are no fields, or one has another type, or a name that is taken.
            OtherShape: its fields are others, and the engine cannot change them.
            IndexDamaged, IndexInUse, IndexUnavailable: see there.
        """
        _check_fields(fields)
        directory = IndexDirectory.open(path, KIND, _shape(fields))
        try:
            index = SearchIndex(directory, fields)
            with directory.explained():
                index._open()
        except BaseException:
            directory.close()
            raise
        return index

    @property
    def path(self) -> Path:
        """As in `Index`."""
        return self.directory.path

    @property
    def applied(self) -> Applied | None:
        """As in `Index`."""
        return self._served[1]

    @property
    def pending(self) -> bool:
        """As in `Index`."""
        return self._pending is not None

    def apply(self, changes: Sequence[Change], applied: Applied) -> None:
        """As in `Index`: readers see it after `commit`. After an error all that was pending is gone.

        Raises:
            UnfitChanges: rows with a number that is too large, or nested too deep; what was pending still is.
        """
        emptied = {_place_of(change) for change in changes if change.truncates}
        left = after_truncates(changes)
        last = {_id_of(change): change for change in left if change.key is not None or change.row is not None}
        with self.directory.explained():
            documents = self._documents(last, changes)
            with self._all_or_nothing():
                for place in emptied:
                    self._writer.delete_documents_by_term("__place", place)
                for id_, document in documents.items():
                    self._writer.delete_documents_by_term("__id", id_)
                    if document is not None:
                        self._writer.add_document(document)
        self._pending = applied

    def commit(self) -> None:
        """Make what is pending durable and visible. After an error it is gone."""
        applied = self._pending
        if applied is None:
            return
        with self.directory.explained(), self._all_or_nothing():
            self._writer.delete_documents_by_term("__id", _STATE)
            self._writer.add_document(_new_document(_STATE, pack(applied.encode())))
            self._writer.commit()
        self._pending = None
        self.directory.committed()
        with self.directory.explained():
            self._index.reload()
            self._served = (self._index.searcher(), applied)

    def search(self, query: str, *, limit: int = 10, offset: int = 0) -> Hits:
        """The rows that fit `query` best: words are looked for in all columns of text, `column:word` in one.

        The language: https://docs.rs/tantivy/latest/tantivy/query/struct.QueryParser.html

        Raises:
            BadQuery: it is none, or longer than `MOST_WORDS`, or deeper than `DEEPEST`, or its columns are not there,
                or more is asked for than `MOST_HITS`.
        """
        if limit < 1 or offset < 0 or limit + offset > MOST_HITS:
            raise BadQuery(f"limit: expected 1 or more, with the offset up to {MOST_HITS}, found {limit} at {offset}")
        _check_size(query)
        searcher, _ = self._served
        with self.directory.explained():
            parsed = self._parse(query)
            try:
                result = searcher.search(parsed, limit, offset=offset)
            except ValueError as error:
                if "Schema error" not in str(error) and "Invalid argument" not in str(error):
                    raise
                raise BadQuery(f"query: {' '.join(str(error).split())}") from error
            hits: list[Hit] = []
            left = MOST_BYTES
            for score, address in result.hits:
                row = _row_of(searcher.doc(address))
                left -= len(row)
                if hits and left < 0:
                    break
                hits.append(_hit(row, score))
        cut = len(hits) < len(result.hits)
        return Hits(result.count, hits, cut)  # type: ignore[attr-defined]  # the stubs have left it out

    def snapshot(self, directory: Path) -> None:
        """As in `Index`; files are linked where the file system can: none is written a second time."""
        with self.directory.explained():
            self.directory.copy_description(directory)
            target = directory / self.directory.files.name
            while True:
                make_directory(target)
                meta = (self.directory.files / "meta.json").read_bytes()
                names = self._link(_files_of(meta), target)
                if (self.directory.files / "meta.json").read_bytes() == meta:
                    break
                shutil.rmtree(target)  # segments were merged meanwhile, and the old ones may be gone
            (target / "meta.json").write_bytes(meta)
            (target / ".managed.json").write_text(json.dumps([*names, "meta.json"]))

    def close(self) -> None:
        """As in `Index`; waits for merges that have begun."""
        with self.directory.explained():
            self._writer.wait_merging_threads()  # no rollback before: merges of before it would go on beside the next owner
        del self._writer, self._index, self._served
        self.directory.close()

    def _open(self) -> None:
        from tantivy import Index

        path = str(self.directory.files)
        if self.directory.description.committed:
            _remove_leftovers(self.directory.files)
            self._index: Index = Index.open(path)
        else:
            self._index = Index(_schema(self.fields), path)
        self._index.config_reader("manual")
        self._index.reload()
        searcher = self._index.searcher()
        self._served = (searcher, self._state(searcher))
        self.directory.check_found(self.applied is not None)
        self._writer = self._index.writer(_HEAP_BYTES, 1)
        self._begin()

    def _begin(self) -> None:
        """The first operation of a writer does nothing. It gets the number of the last commit; a merge up to that
        commit, which can begin before the next one, takes it for a part of it, and forgets it in some of the segments:
        a row stayed beside the one that had replaced it.
        """
        self._writer.delete_documents_by_term("__id", "nothing")

    def _state(self, searcher: "Searcher") -> Applied | None:
        from tantivy import Query

        found = searcher.search(Query.term_query(self._index.schema, "__id", _STATE), 2)
        if not found.hits:
            return None
        if len(found.hits) > 1:
            raise IndexDamaged(f"{self.directory.path}: expected one position, found more")
        ((_, address),) = found.hits
        (data,) = unpack(_row_of(searcher.doc(address)))
        try:
            return Applied.decode(data)
        except msgspec.MsgspecError as error:
            raise IndexDamaged(f"{self.directory.path}: its position: {error}") from error

    def _documents(self, last: Mapping[str, Change], changes: Sequence[Change]) -> dict[str, "Document | None"]:
        documents: dict[str, Document | None] = {}
        reasons: dict[int, str] = {}  # by identity
        for id_, change in last.items():
            try:
                documents[id_] = None if change.row is None else self._document(id_, change)
            except UNPACKABLE as error:
                reasons[id(change)] = str(error)
        if reasons:
            places = {id(change): place for place, change in enumerate(changes)}
            raise UnfitChanges({places[each]: reason for each, reason in reasons.items()})
        return documents

    def _document(self, id_: str, change: Change) -> "Document":
        document = _new_document(id_, pack(change.topic, change.partition, change.offset, change.row))
        document.add_text("__place", _place_of(change))
        for column, kind in self.fields.items():
            for value in _values((change.row or {}).get(column)):
                _ADD[kind](document, column, value)
        return document

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._pending = None
            with contextlib.suppress(Exception):
                self._writer.rollback()
                self._begin()
            raise

    def _parse(self, text: str) -> "Query":
        from tantivy import Occur, Query

        columns = [name for kind in ("text", "keyword") for name in self.fields if self.fields[name] == kind]
        texts = [name for name in columns if self.fields[name] == "text"]
        try:
            parsed = self._index.parse_query(text, texts or columns or list(self.fields))
        except ValueError as error:
            raise BadQuery(f"query: {' '.join(str(error).split())}") from error
        state = Query.term_query(self._index.schema, "__id", _STATE)
        return Query.boolean_query([(Occur.Must, parsed), (Occur.MustNot, state)])

    def _link(self, is_file: Callable[[str], bool], target: Path) -> list[str]:
        names = [each.name for each in self.directory.files.iterdir() if is_file(each.name)]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                _link_or_copy(self.directory.files / name, target / name)
        return names


def _check_size(query: str) -> None:
    if (size := len(query.encode(errors="replace"))) > MOST_WORDS:
        raise BadQuery(f"query: expected up to {MOST_WORDS} bytes, found {size}")
    deep = 0
    for each in query:  # also where they may be quoted: what is a quote, the engine alone knows
        deep += (each == "(") - (each == ")")
        if deep > DEEPEST:
            raise BadQuery(f"query: expected up to {DEEPEST} parentheses inside of each other, found more")


def fields_of(path: Path) -> dict[str, str] | None:
    """The fields that an index has; None where there is none of this format."""
    try:
        shape = msgspec.json.decode((path / NAME).read_bytes(), type=prepared(Description)).shape
        fields = {str(name): str(kind) for name, kind in shape["fields"].items()}
    except (OSError, msgspec.MsgspecError, LookupError, TypeError, AttributeError):
        return None
    return fields if shape == _shape(fields) else None


def _shape(fields: Mapping[str, str]) -> dict[str, Any]:
    return {"fields": dict(fields), "places": True}


def _check_fields(fields: Mapping[str, str]) -> None:
    from tantivy import SchemaBuilder

    if not fields:
        raise UserError("search: expected columns to search in, found none")
    for name, kind in fields.items():
        if kind not in _ADD:
            raise UserError(f"search: column {name}: expected one of {', '.join(_ADD)}, found {kind!r}")
        if name.startswith("__") or not SchemaBuilder.is_valid_field_name(name):
            raise UserError(f"search: column {name!r}: not a name that can be searched in")


def _schema(fields: Mapping[str, str]) -> "Schema":
    from tantivy import SchemaBuilder

    builder = SchemaBuilder()
    builder.add_text_field("__id", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("__place", tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field("__row", stored=True)
    for name, kind in fields.items():
        match kind:
            case "text":
                builder.add_text_field(name)
            case "keyword":
                builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
            case "integer":
                builder.add_integer_field(name, indexed=True, fast=True)
            case "float":
                builder.add_float_field(name, indexed=True, fast=True)
            case "boolean":
                builder.add_boolean_field(name, indexed=True, fast=True)
            case "time":
                builder.add_date_field(name, indexed=True, fast=True)
    return builder.build()


def _id_of(change: Change) -> str:
    """One key, one document; records without a key are all kept."""
    one = ("record", f"{change.partition}:{change.offset}") if change.key is None else ("key", change.key)
    return _hash(change.topic, *one)


def _place_of(change: Change) -> str:
    """What a truncate deletes by."""
    return _hash(change.topic, str(change.partition))


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _new_document(id_: str, row: bytes) -> "Document":
    from tantivy import Document

    document = Document()
    document.add_text("__id", id_)
    document.add_bytes("__row", row)
    return document


def _row_of(document: "Document") -> bytes:
    row: Any = document.get_first("__row")
    return bytes(row)


def _hit(data: bytes, score: Any) -> Hit:
    topic, partition, offset, row = unpack(data)
    return Hit(row, topic, partition, offset, score)


def _values(value: Any) -> Iterator[Any]:
    """What there is to search for in a value: the parts of what has parts."""
    match value:
        case None:
            return
        case list():
            for each in value:
                yield from _values(each)
        case dict():
            yield from _values(list(value.values()))
        case _:
            yield value


def _add_text(document: "Document", column: str, value: Any) -> None:
    if isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = value if type(value) is str else str(msgspec.to_builtins(value))
    document.add_text(column, text.encode(errors="replace").decode())


def _add_integer(document: "Document", column: str, value: Any) -> None:
    if isinstance(value, int) and value in _NUMBERS:
        document.add_integer(column, int(value))


def _add_float(document: "Document", column: str, value: Any) -> None:
    if isinstance(value, int | float | Decimal) and value == value:
        with contextlib.suppress(OverflowError):
            document.add_float(column, float(value))


def _add_boolean(document: "Document", column: str, value: Any) -> None:
    if isinstance(value, bool):
        document.add_boolean(column, value)


def _add_time(document: "Document", column: str, value: Any) -> None:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time_of_day(), UTC)
    if isinstance(value, datetime):
        with contextlib.suppress(ValueError):  # before 1677 or after 2262: the row is kept, and not found by its time
            document.add_date(column, value if value.tzinfo else value.replace(tzinfo=UTC))


_ADD: dict[str, Callable[["Document", str, Any], None]] = {
    "text": _add_text,
    "keyword": _add_text,
    "integer": _add_integer,
    "float": _add_float,
    "boolean": _add_boolean,
    "time": _add_time,
}
"""A value that is not of a field's type is not searched for; it is in the row all the same."""


def _files_of(meta: bytes) -> Callable[[str], bool]:
    """Whether a file is one of the commit's: `<segment>.<kind>`, and what is deleted of a segment as of the commit,
    `<segment>.<number>.del`.
    """
    found = json.loads(meta)["segments"]
    segments = {each["segment_id"].replace("-", ""): each["deletes"] for each in found}
    deleted = {f"{name}.{deletes['opstamp']}.del" for name, deletes in segments.items() if deletes}
    return lambda name: name in deleted if name.endswith(".del") else name.split(".")[0] in segments


def _remove_leftovers(files: Path) -> None:
    """Of a commit that a kill cut short. The engine gives its next commit the same number, and refuses, from then on,
    to write the deletions of a segment under a name that is there.
    """
    is_file = _files_of((files / "meta.json").read_bytes())
    for each in files.iterdir():
        if (
            not is_file(each.name)
            and (each.name.startswith(".tmp") or each.name[0] != ".")
            and each.name != "meta.json"
        ):
            each.unlink(missing_ok=True)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
