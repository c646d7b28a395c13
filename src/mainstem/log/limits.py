"""How many files the process may have open."""

import resource


def open_files_limit(wanted: int) -> int:
    """Raise the process's own limit as far as it may go; the number of segment files to keep open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = hard if hard != resource.RLIM_INFINITY else max(soft, 2 * wanted)
    if soft < min(reachable, 2 * wanted):
        soft = min(reachable, 2 * wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(wanted, soft // 2))  # the other half is for connections
