"""Nexmark: seven queries over an auction house, by Mainstem and by other engines for Python, on one log."""
