"""The site's pages. They show jobs and say what they have shown; nothing here is about who needs to know.

    python producers/site.py http://127.0.0.1:9600

shows some jobs to some people.
"""

import json
import random
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.request import Request, urlopen


def view(kind: str, job: int, poster: int, viewer: int, at: datetime) -> dict[str, Any]:
    """What is recorded of a job that was in a list (`impression`), on its own page (`display`), or applied for."""
    return {
        "id": uuid.uuid4().hex,  # sent again, it is the same view
        "kind": kind,
        "place": "site",
        "job_id": job,
        "poster_id": poster,
        "viewer_id": viewer,
        "at": at.isoformat(),
    }


def record(gateway: str, views: Sequence[dict[str, Any]]) -> None:
    """Return once the log has them."""
    body = json.dumps(views).encode()
    request = Request(f"{gateway}/v1/topics/job_views/events", body, {"content-type": "application/json"})
    with urlopen(request):
        pass


def main() -> None:
    chance = random.Random()
    for _ in range(100):
        job, viewer = chance.randrange(20), chance.randrange(10)
        kinds = ["impression", "display", "application"][: chance.choice([1, 1, 1, 2, 2, 3])]
        record(sys.argv[1], [view(kind, job, job % 5, viewer, datetime.now(UTC)) for kind in kinds])


if __name__ == "__main__":
    main()
