"""How many files the process may have open."""

import resource

LET_GO = 64
"""So many files of segments that were let go may still be open: somebody reads them, or a client receives them."""
_RESERVE = LET_GO + 16  # the journal, the checkpoint's files, compaction
_OWN = 24  # a log at rest has 18, with two listeners


def open_files_limit(wanted: int) -> int:
    """Raise the process's own limit as far as it may go; the number of segment files to keep open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = hard if hard != resource.RLIM_INFINITY else max(soft, 2 * wanted)
    if soft < min(reachable, 2 * wanted):
        soft = min(reachable, 2 * wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _segment_files(wanted, soft)


def connections_limit(wanted: int) -> int:
    """How many connections leave room for the segment files, and some more; `open_files_limit(wanted)` comes first.

    A segment that cannot be opened stops appends, so it is connections that are refused.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - _segment_files(wanted, soft) - max(min(_RESERVE, soft // 8), _OWN)


def _segment_files(wanted: int, soft: int) -> int:
    return max(16, min(wanted, soft // 2))  # the other half is for connections
