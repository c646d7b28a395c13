"""Local indexes: what is stored is found by what comes after it."""


def test_stored_queries_find_what_has_all_of_their_words(mainstem_jobs):
    with mainstem_jobs.start("alerts") as job:
        stored = [{"query_id": "storms", "words": "storm coast"}, {"query_id": "boats", "words": "boat"}]
        assert job.feed(queries=stored) == []
        article = {"article_id": "1", "text": "A storm at the coast: every boat in the harbour."}
        found = job.feed(articles=[article, {"article_id": "2", "text": "A storm in the hills."}])
        assert sorted((row["query_id"], row["article_id"]) for row in found) == [("boats", "1"), ("storms", "1")]

        job.feed(queries=[{"query_id": "storms", "words": "hills"}, {"query_id": "boats", "words": None}])
        found = job.feed(articles=[article | {"article_id": "3"}, {"article_id": "4", "text": "Storm, coast, hills"}])
        assert [(row["query_id"], row["article_id"]) for row in found] == [("storms", "4")]
        assert job.also["news.queries_stored"][-1]["_deleted"]


def test_an_article_is_told_which_earlier_ones_are_most_like_it(mainstem_jobs):
    texts = ["ships in a storm", "a calm day in the hills", "hills and valleys"]
    with mainstem_jobs.start("like_earlier_ones") as job:
        assert job.feed(articles=[{"article_id": str(at), "text": text} for at, text in enumerate(texts)]) == []
        (best, *_) = job.feed(articles=[{"article_id": "3", "text": "the storm that took the ships"}])
        assert (best["article_id"], best["like"]) == ("3", "0")
        assert best["score"] > 0
