"""Consumer groups: who belongs to a group, what each member reads, and how far the group has come."""

from mainstem.broker.groups.coordinator import GroupCoordinator
from mainstem.broker.groups.storage import OFFSETS_TOPIC

__all__ = ["OFFSETS_TOPIC", "GroupCoordinator"]
