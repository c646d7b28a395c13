"""Wait for what must come, however slow the machine; only what does not come takes the whole time."""

import time
from collections.abc import Callable


def wait_until(reached: Callable[[], object], what: str, *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)
