"""Wait for what must come, however slow the machine; only what does not come takes the whole time."""

import time
from collections.abc import Callable


def wait_until(reached: Callable[[], object], what: str, *, seconds: float = 120) -> None:
    began = time.monotonic()
    while not reached():
        assert time.monotonic() < began + seconds, f"not within {seconds:.0f} s: {what}"
        pause(began)


def pause(began: float) -> None:
    """Between two looks at what is waited for since `began`: the longer it takes, the less a moment more matters.

    A look may open a consumer and read a topic: fifty of them in a second took a third of a core from what was
    waited for.
    """
    time.sleep(min(0.25, max(0.02, (time.monotonic() - began) / 10)))
