"""Consumer groups: members, assignments and committed offsets.

- `machine.py`: the pure state machine, made of `_core.py`, `_membership.py`, `_offsets.py` and `_timers.py`.
- `group.py`, `messages.py`: its data, and its requests and results.
- `records.py`: the records of __consumer_offsets.
- `driver.py`: the coordinator that calls the machine.

Only the broker imports this package.
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
