"""Consumer groups: members, assignments and committed offsets.

- `driver.py`: the coordinator; `cluster.state_topics` runs its machines.
- `partition.py`: the pure state machine of one partition of __consumer_offsets. It consists of:
  - `classic/`: groups of the classic protocol.
  - `consumer/`, `assignors/`: groups of the consumer protocol.
  - `offsets.py`, `committed.py`: the rules of committed offsets, and those of one group.
- `outbox.py`, `timers.py`, `memory.py`: actions and unfinished writes, deadlines, and the memory limit.
- `messages.py`, `records.py`: requests, results and actions; the records of __consumer_offsets.

Only the broker imports this package.
"""

from cluster.groups.assignors import ASSIGNORS, Assignment
from cluster.groups.committed import CommittedOffset
from cluster.groups.consumer.messages import (
    ConsumerGroupView,
    ConsumerLimits,
    ConsumerMemberView,
    Heartbeat,
    HeartbeatResult,
)
from cluster.groups.consumer.values import Topic
from cluster.groups.driver import GroupCoordinator
from cluster.groups.messages import Commit, GroupLimits, Join, JoinResult, Leaving, Sync, SyncResult

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Commit",
    "CommittedOffset",
    "ConsumerGroupView",
    "ConsumerLimits",
    "ConsumerMemberView",
    "GroupCoordinator",
    "GroupLimits",
    "Heartbeat",
    "HeartbeatResult",
    "Join",
    "JoinResult",
    "Leaving",
    "Sync",
    "SyncResult",
    "Topic",
]
