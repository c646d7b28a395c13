"""A newsfeed: each post becomes a record in the feed of everybody who follows its author."""

from pyspark.sql import DataFrame

from mainstem.process import changelog, stream, topic

posts = topic("social.posts", key="author", event_time="at")
follows = changelog("social.follows", key=["follower", "author"])


@stream(to="social.feeds", key="follower")
def feeds(posts: DataFrame, follows: DataFrame) -> DataFrame:
    """Fan-out: a post is written once for each follower, so a feed is read by its key alone. Who unfollows, which is a
    tombstone, keeps what the feed has and gets no more.
    """
    return posts.join(follows, "author")
