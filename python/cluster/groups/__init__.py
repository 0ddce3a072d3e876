"""Consumer groups: who is in them, who reads what, how far they have read.

`machine.py` is the pure state machine (`group.py` its data, `messages.py` what goes in and out), `records.py`
what is stored of it, `driver.py` what makes it happen. Only the broker imports this room.
"""

from cluster.groups.driver import GroupCoordinator, GroupLog
from cluster.groups.group import CommittedOffset
from cluster.groups.machine import GroupMachine
from cluster.groups.messages import Commit, GroupLimits, Join, JoinResult, Leaving, Sync, SyncResult

__all__ = [
    "Commit",
    "CommittedOffset",
    "GroupCoordinator",
    "GroupLimits",
    "GroupLog",
    "GroupMachine",
    "Join",
    "JoinResult",
    "Leaving",
    "Sync",
    "SyncResult",
]
