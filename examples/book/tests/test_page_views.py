"""Page views: where the user lives, and where he lived."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def view(user, minutes, page="/"):
    return {"user_id": user, "page": page, "at": NOON + timedelta(minutes=minutes)}


def user(number, country, minutes):
    return {"user_id": number, "country": country, "since": NOON + timedelta(minutes=minutes)}


def countries(rows):
    return [row["country"] for row in sorted(rows, key=lambda row: row["at"])]


def test_as_of_now_it_depends_on_when_the_views_are_read(mainstem_jobs):
    job = mainstem_jobs.start("page_views_now")
    views = [view(7, 0), view(7, 60), view(8, 60)]
    assert countries(job.feed(page_views=views, users=[user(7, "fr", -9)])) == ["fr", "fr", None]
    assert countries(job.feed(page_views=views, users=[user(7, "pt", 30)])) == ["pt", "pt", None]


def test_as_of_then_it_does_not(mainstem_jobs):
    job = mainstem_jobs.start("page_views_then")
    views = [view(7, 0), view(7, 60), view(8, 60)]
    job.feed(users_then=[user(7, "fr", -9), user(7, "pt", 30)])
    assert countries(job.feed(page_views=views)) == ["fr", "pt", None]
    job.feed(users_then=[user(7, "it", 90)])
    assert countries(job.feed(page_views=views)) == ["fr", "pt", None]
