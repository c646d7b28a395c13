"""State: what is told once, and what is told because nothing came."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def reading(minutes, device="a", celsius=20.0):
    return {"device": device, "celsius": celsius, "at": NOON + timedelta(minutes=minutes)}


def test_what_a_device_sends_again_is_left_out(mainstem_jobs):
    with mainstem_jobs.start("readings_once") as job:
        assert len(job.feed(readings=[reading(0), reading(0), reading(1)])) == 2
        assert job.feed(readings=[reading(1), reading(2)])[0]["at"] == NOON + timedelta(minutes=2)


def test_a_device_that_is_silent_is_told_once(mainstem_jobs):
    with mainstem_jobs.start("silences") as job:
        assert job.feed(readings=[reading(0), reading(1), reading(0, "b")]) == []
        assert job.feed(readings=[reading(8, "b")]) == []
        (alarm,) = job.advance(NOON + timedelta(minutes=12, seconds=1))
        assert alarm == {"device": "a", "silent_since": NOON + timedelta(minutes=1)}
        assert job.advance(NOON + timedelta(minutes=15)) == []
        assert [row["device"] for row in job.finish()] == ["b"]


def test_a_hot_device_is_told_once_a_day(mainstem_jobs):
    with mainstem_jobs.start("too_hot") as job:
        told = job.feed(readings=[reading(0, celsius=95.0), reading(1, celsius=99.0), reading(2, "b", 20.0)])
        assert [row["device"] for row in told] == ["a"]
        assert [row["device"] for row in job.feed(readings=[reading(3, celsius=95.0), reading(3, "b", 91.0)])] == ["b"]
        assert job.wait(timedelta(hours=23, minutes=59)) == []
        assert job.feed(readings=[reading(4, celsius=95.0)]) == []
        assert job.wait(timedelta(minutes=2)) == []
        assert [row["device"] for row in job.feed(readings=[reading(5, celsius=95.0)])] == ["a"]
