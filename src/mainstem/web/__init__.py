"""DOORS FOR PROGRAMS: what all that answers HTTP has in common: the listener, its bounds, which pages may ask."""
