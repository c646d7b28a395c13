"""Groups of the consumer protocol (KIP-848): heartbeats alone, and the log assigns."""
