"""What each reader makes of the views."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def view(minutes, kind="display", job=1, viewer=7, place="site", poster=5):
    at = NOON + timedelta(minutes=minutes)
    return {"kind": kind, "place": place, "job_id": job, "poster_id": poster, "viewer_id": viewer, "at": at}


def clock(minutes=0, days=0):
    """A time as rows that come out have it."""
    return NOON + timedelta(minutes=minutes, days=days)


def test_who_views_more_than_a_hundred_jobs_in_ten_minutes_is_told_at_once(mainstem_jobs):
    with mainstem_jobs.start("scrapers") as job:
        many = [view(1, job=number, viewer=viewer) for number in range(99) for viewer in (7, 8)]
        again = [view(2, job=1, viewer=8)] * 5
        later = [view(11, job=number, viewer=8) for number in range(200, 205)]
        assert job.feed(job_views=[*many, *again, *later, view(2, "impression", job=300)]) == []
        assert job.feed(job_views=[view(3, job=100)]) == []
        assert job.feed(job_views=[view(3, job=101)]) == [{"viewer_id": 7, "since": clock(), "jobs": 101}]


VIEWS = [
    *(view(minutes, "impression", job=1) for minutes in (0, 0.5, 1)), view(0.5), view(1, viewer=8), view(1.5, "application"),
    view(2, job=2, place="mobile"), view(2, job=3, poster=6), view(2.5, "application", job=3, poster=6),
]  # fmt: skip


def counts(rows, key):
    return {row[key]: (row["impressions"], row["displays"], row["applications"]) for row in rows}


def test_posters_see_what_came_of_each_job_and_of_all(mainstem_jobs):
    with mainstem_jobs.start("job_statistics") as jobs:
        found = counts(jobs.feed(job_views=VIEWS), "job_id")
        assert found == {1: (3, 2, 1), 2: (0, 1, 0), 3: (0, 1, 1)}
        assert counts(jobs.feed(job_views=[view(3)]), "job_id") == {1: (3, 3, 1)}
    with mainstem_jobs.start("poster_statistics") as posters:
        assert counts(posters.feed(job_views=VIEWS), "poster_id") == {5: (3, 3, 1), 6: (0, 1, 1)}


def test_the_rates_are_told_by_place_and_again_when_they_change(mainstem_jobs):
    with mainstem_jobs.start("display_rate") as job:
        found = {(row["place"], row["minute"]): (row["displays"], row["rate"]) for row in job.feed(job_views=VIEWS)}
        assert found == {
            ("site", clock(0)): (1, 0.5), ("site", clock(1)): (1, 1.0), ("site", clock(2)): (1, None),
            ("mobile", clock(2)): (1, None),
        }  # fmt: skip
        assert job.feed(job_views=[view(50)])[0]["minute"] == clock(50)
        (again,) = job.feed(job_views=[view(2, place="mobile"), view(2.5, place="mobile")])
        assert (again["place"], again["minute"], again["displays"]) == ("mobile", clock(2), 3)
    with mainstem_jobs.start("application_rate") as job:
        rows = job.feed(job_views=[*VIEWS, view(10)])
        found = {(row["place"], row["since"]): (row["applications"], row["rate"]) for row in rows}
    assert found == {
        ("site", clock(0)): (2, 2 / 3), ("mobile", clock(0)): (0, 0.0), ("site", clock(10)): (0, 0.0),
    }  # fmt: skip


def test_a_job_that_was_shown_three_times_in_a_week_rests(mainstem_jobs):
    day = 24 * 60
    with mainstem_jobs.start("impression_caps") as job:
        assert job.feed(job_views=[view(day, "impression"), view(0, "impression"), view(0, "impression", 2)]) == []
        assert job.feed(job_views=[view(day, "display")]) == []
        (rests,) = job.feed(job_views=[view(2 * day, "impression"), view(8 * day, "impression", 2)])
        assert rests == {"viewer_id": 7, "job_id": 1, "rests_until": clock(days=7)}
        assert job.feed(job_views=[view(9 * day, "impression", 2)]) == []
        (rests,) = job.feed(job_views=[view(10 * day, "impression", 2)])
        assert (rests["job_id"], rests["rests_until"]) == (2, clock(days=15))


def test_what_rests_is_not_recommended(mainstem_jobs):
    def candidate(days, job, viewer=7):
        return {"viewer_id": viewer, "job_id": job, "score": 0.5, "at": NOON + timedelta(days=days)}

    job = mainstem_jobs.start("recommended")
    cap = {"viewer_id": 7, "job_id": 1, "rests_until": NOON + timedelta(days=7)}
    out = job.feed(impression_caps=[cap], candidates=[candidate(6, 1), candidate(6, 2), candidate(6, 1, 8)])
    assert sorted((row["viewer_id"], row["job_id"]) for row in out) == [(7, 2), (8, 1)]
    assert [row["job_id"] for row in job.feed(candidates=[candidate(7, 1)])] == [1]


def test_the_reach_of_a_job_is_told_by_place(mainstem_jobs):
    with mainstem_jobs.start("reach") as job:
        rows = job.feed(job_views=[*VIEWS, view(2, place="mobile"), view(3, place="mobile"), view(3, viewer=7)])
    found = {(row["job_id"], row["place"]): (row["displays"], row["viewers"]) for row in rows}
    assert found == {(1, "site"): (3, 2), (1, "mobile"): (2, 1), (2, "mobile"): (1, 1), (3, "site"): (1, 1)}
