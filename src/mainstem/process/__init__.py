"""CHANGE: what a user declares (project), what it means (plan), running it on Spark (run)."""

from mainstem.process.declare import BadDeclaration, changelog, stream, table, topic
from mainstem.process.project import Project, load_project

__all__ = ["BadDeclaration", "Project", "changelog", "load_project", "stream", "table", "topic"]
