"""AGREE ON STATE: elections and replicated state machines over a log.

A service is a class with five methods (`Service`). A `Node` keeps a replica of it: `StateMachine`, where the log holds
operations and every node carries them out, or `PrimaryBackup`, where one elected node does and the log holds results.
"""

from mainstem.replicate.election import Lineage, Timing
from mainstem.replicate.errors import (
    Broken,
    Diverged,
    NotApplied,
    NotPrimary,
    OtherLog,
    OutcomeUnknown,
    Refused,
    Stopped,
    TooLarge,
    UnknownRequest,
    Unreadable,
)
from mainstem.replicate.machine import Machine, Service
from mainstem.replicate.node import Answered, Node
from mainstem.replicate.primary_backup import PrimaryBackup
from mainstem.replicate.records import Request
from mainstem.replicate.replica import Replica
from mainstem.replicate.state_machine import StateMachine

__all__ = [
    "Answered",
    "Broken",
    "Diverged",
    "Lineage",
    "Machine",
    "Node",
    "NotApplied",
    "NotPrimary",
    "OtherLog",
    "OutcomeUnknown",
    "PrimaryBackup",
    "Refused",
    "Replica",
    "Request",
    "Service",
    "StateMachine",
    "Stopped",
    "Timing",
    "TooLarge",
    "UnknownRequest",
    "Unreadable",
]
