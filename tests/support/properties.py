"""How much a property is tried: a little on every change, much in `make test-long`."""

from hypothesis import settings

USUAL, MUCH = 100, 2000


def examples(few: int) -> int:
    """For a property whose examples take long: `few` of them on every change, ten times as many in `make test-long`."""
    return few if settings().max_examples <= USUAL else 10 * few
