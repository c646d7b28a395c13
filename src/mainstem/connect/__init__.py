"""IN and OUT: sources, sinks, and the worker that moves records and commits source offsets."""
