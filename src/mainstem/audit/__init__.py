"""PROVE: counts and hashes per topic, partition and tier; the books must balance."""

from mainstem.audit.books import Count, Line, Verdict, WriterStatement, balance

__all__ = ["Count", "Line", "Verdict", "WriterStatement", "balance"]
