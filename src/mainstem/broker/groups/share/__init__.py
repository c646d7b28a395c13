"""Share groups (KIP-932): members read the same partitions together, and every record is for one of them at a time."""
