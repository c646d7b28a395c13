"""Consumer groups: who belongs to a group, what each member reads, and how far the group has come."""

from mainstem.broker.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator

__all__ = ["OFFSETS_TOPIC", "GroupCoordinator"]
