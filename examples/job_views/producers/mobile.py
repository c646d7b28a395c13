"""The mobile application, which came later: it records the same views, and may have been out of reach meanwhile.

    python producers/mobile.py http://127.0.0.1:9600

sends what was viewed in the last half hour.
"""

import gzip
import json
import random
import sys
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.request import Request, urlopen


class Telephone:
    """Keeps what its owner views until it is sent."""

    def __init__(self, viewer: int) -> None:
        self.kept: list[dict[str, Any]] = []
        self._viewer = viewer

    def show(self, kind: str, job: int, poster: int, at: datetime) -> None:
        what = {"kind": kind, "job_id": job, "poster_id": poster, "at": at.isoformat()}
        self.kept.append(what | {"id": uuid.uuid4().hex, "place": "mobile", "viewer_id": self._viewer})

    def send(self, gateway: str) -> None:
        """Nothing is forgotten before the log has it."""
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        body = gzip.compress(json.dumps(self.kept).encode())
        with urlopen(Request(f"{gateway}/v1/topics/job_views/events", body, headers)):
            self.kept.clear()


def main() -> None:
    chance = random.Random()
    for viewer in range(10):
        telephone = Telephone(viewer)
        for minutes in range(30, 0, -5):
            job = chance.randrange(20)
            telephone.show("display", job, job % 5, datetime.now(UTC) - timedelta(minutes=minutes))
        telephone.send(sys.argv[1])


if __name__ == "__main__":
    main()
