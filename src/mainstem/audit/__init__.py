"""PROVE: counts and hashes per topic, tier and bucket; the books must balance."""

from mainstem.audit.books import Count, Line, Verdict, WriterStatement, balance

__all__ = ["Count", "Line", "Verdict", "WriterStatement", "balance"]
