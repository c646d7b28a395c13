"""AGREE: subjects, schemas, compatibility; its state is a compacted topic, so it can be rebuilt from offset 0."""

from mainstem.registry.client import Registry, RegistryUnavailable
from mainstem.registry.errors import IncompatibleSchema, InvalidSchema, NotFound, NotPermitted, RegistryError

__all__ = [
    "IncompatibleSchema",
    "InvalidSchema",
    "NotFound",
    "NotPermitted",
    "Registry",
    "RegistryError",
    "RegistryUnavailable",
]
