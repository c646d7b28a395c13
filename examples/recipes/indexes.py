"""Local indexes: queries that are stored and find each article that comes, and articles that are like earlier ones."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import rocksdict
import tantivy
from pyspark.sql import DataFrame, Row

from mainstem.process import Change, LocalIndex, changelog, indexed, stream, topic

queries = topic("news.queries")
articles = topic("news.articles")
stored = changelog("news.queries_stored", key="query_id")
remembered = changelog("news.articles_remembered", key="article_id")


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


class StoredQueries(LocalIndex):
    """Queries in RocksDB, each under one of its words: an article asks for its own words, and not for all queries.

    word, zero byte, query     the query's words
    zero byte, query           the word that it is under
    """

    columns = "query_id string, words array<string>"
    returns = "query_id string, article_id string"

    def open(self, directory: Path) -> None:
        self._db = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            batch, query = rocksdict.WriteBatch(raw_mode=True), change.key["query_id"].encode()
            if (before := cast("bytes | None", self._db.get(b"\0" + query))) is not None:
                batch.delete(before + b"\0" + query)
                batch.delete(b"\0" + query)
            if change.row is not None:
                word = max(change.row["words"], key=len).encode()  # most articles are without it
                batch.put(word + b"\0" + query, json.dumps(change.row["words"]).encode())
                batch.put(b"\0" + query, word)
            self._db.write(batch)
        self._db.flush(wait=True)

    def process(self, row: Row) -> Iterator[Row]:
        if row.query_id is None:
            yield from self._matches(row.article_id, words_of(row.text))
        elif row.words:
            self.put(query_id=row.query_id, words=sorted(words_of(row.words)))
        else:
            self.remove(query_id=row.query_id)

    def _matches(self, article: str, words: set[str]) -> Iterator[Row]:
        for word in words:
            start = word.encode() + b"\0"
            for key, value in cast("Iterator[tuple[bytes, bytes]]", self._db.items(from_key=start)):
                if not key.startswith(start):
                    break
                if words.issuperset(json.loads(value)):
                    yield Row(query_id=key[len(start) :].decode(), article_id=article)

    def close(self) -> None:
        self._db.close()


@stream(to="news.alerts", key="query_id", also=[stored])
def alerts(queries: DataFrame, articles: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Which stored queries an article has all words of. Every partition has its share of the queries, and is given all
    articles.
    """
    return indexed(stored, StoredQueries(), by_key=queries, to_all=articles)


class Remembered(LocalIndex):
    """Articles in an index for search."""

    columns = "article_id string, text string"
    returns = "article_id string, like string, score double"

    def open(self, directory: Path) -> None:
        schema = (
            tantivy.SchemaBuilder()
            .add_text_field("id", stored=True, tokenizer_name="raw")
            .add_text_field("text")
            .build()
        )
        self._index = tantivy.Index(schema, str(directory))
        self._schema = schema

    def apply(self, changes: Iterable[Change]) -> None:
        writer = self._index.writer(heap_size=32 << 20, num_threads=1)
        for change in changes:
            writer.delete_documents_by_term("id", change.key["article_id"])
            if change.row is not None:
                writer.add_document(tantivy.Document(id=change.row["article_id"], text=change.row["text"]))
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()

    def process(self, row: Row) -> Iterator[Row]:
        if row.article_id is not None:
            self.put(article_id=row.article_id, text=row.text)
            return
        found = self._index.searcher()
        words = [tantivy.Query.term_query(self._schema, "text", word) for word in sorted(words_of(row.text))]
        hits = found.search(tantivy.Query.boolean_query([(tantivy.Occur.Should, word) for word in words]), limit=3).hits
        for score, address in hits:
            yield Row(article_id=row.asked_for, like=found.doc(address).get_first("id"), score=score)


@stream(to="news.like_earlier_ones", key="article_id", also=[remembered])
def like_earlier_ones(articles: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Earlier articles that are most like a new one: three of each partition."""
    asked = articles.withColumnRenamed("article_id", "asked_for")
    return indexed(remembered, Remembered(), by_key=articles, to_all=asked)
