"""A newsfeed: who finds which posts in his feed."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def post(author, number):
    return {"author": author, "text": f"{author} {number}", "at": NOON + timedelta(minutes=number)}


def follow(follower, author):
    return {"follower": follower, "author": author}


def texts(rows):
    found = {}
    for row in rows:
        found.setdefault(row["follower"], set()).add(row["text"])
    return found


def test_a_post_is_in_the_feed_of_each_follower(mainstem_jobs):
    job = mainstem_jobs.start("feeds")
    follows = [follow("bob", "ann"), follow("cat", "ann"), follow("cat", "bob")]
    out = job.feed(posts=[post("ann", 1), post("bob", 2), post("cat", 3)], follows=follows)
    assert texts(out) == {"bob": {"ann 1"}, "cat": {"ann 1", "bob 2"}}
    assert len(out) == 3


def test_who_unfollows_gets_no_more(mainstem_jobs):
    job = mainstem_jobs.start("feeds")
    job.feed(follows=[follow("bob", "ann"), follow("cat", "ann")])
    unfollow = follow("cat", "ann") | {"_deleted": True}
    assert texts(job.feed(posts=[post("ann", 1)])) == {"bob": {"ann 1"}, "cat": {"ann 1"}}
    assert texts(job.feed(posts=[post("ann", 2)], follows=[unfollow])) == {"bob": {"ann 2"}}
    assert texts(job.feed(posts=[post("ann", 3)], follows=[follow("cat", "ann")])) == {
        "bob": {"ann 3"}, "cat": {"ann 3"},
    }  # fmt: skip
