"""OUT: what keeps other systems equal to the log; each stores the log's offsets in its own commit."""
