"""CHANGE: what a user declares (project), what it means (plan), running it on Spark (run)."""

from mainstem.process.asof import as_of
from mainstem.process.declare import BadDeclaration, changelog, stream, table, topic
from mainstem.process.local_index import Change, LocalIndex, indexed
from mainstem.process.project import Project, load_project

__all__ = [
    "BadDeclaration",
    "Change",
    "LocalIndex",
    "Project",
    "as_of",
    "changelog",
    "indexed",
    "load_project",
    "stream",
    "table",
    "topic",
]
