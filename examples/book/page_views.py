"""Views of pages, joined with what is known of who has viewed them: a stream of clicks and a table of users."""

from pyspark.sql import DataFrame

from mainstem.process import as_of, changelog, stream, topic

page_views = topic("site.page_views", event_time="at")
users = changelog("site.users", key="user_id")
users_then = changelog("site.users", key="user_id", history="since")


@stream(to="site.page_views_now", key="user_id")
def page_views_now(page_views: DataFrame, users: DataFrame) -> DataFrame:
    """As of now: where the user lives when the view is read. Who reads it again later may be told another country."""
    return page_views.join(users.drop("since"), "user_id", "left")


@stream(to="site.page_views_then", key="user_id")
def page_views_then(page_views: DataFrame, users_then: DataFrame) -> DataFrame:
    """As of then: where the user lived when the page was viewed, whenever that is read."""
    return as_of(page_views, users_then, on="user_id", time="at").drop("since")
