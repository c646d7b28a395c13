"""Rows that are kept out, and rows of a second topic."""


def request(status, path="/"):
    return {"host": "a", "path": path, "status": status, "bytes": 1, "at": "2026-01-01T12:00:00Z"}


def test_requests_that_cannot_be_are_rejected_with_the_reason(mainstem_jobs):
    with mainstem_jobs.start("checked_requests") as job:
        passed = job.feed(requests=[request(200), request(999, "/b"), request(503, "/c")])
        assert [row["status"] for row in passed] == [200, 503]
        assert [(row["path"], row["_rejected"]) for row in job.rejected] == [
            ("/b", "expected a status of 100 to 599, found 999")
        ]
        assert [row["path"] for row in job.also["web.failures"]] == ["/c"]
