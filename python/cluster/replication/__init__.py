"""Decisions about in-sync replicas, on the leaders of partitions.

- `state.py`: the pure state machine.
- `driver.py`: reports of the data plane, and the AlterPartition requests to the controller.

Only the broker imports this package.
"""

from cluster.replication.driver import Replication
from cluster.replication.state import ReplicationState

__all__ = ["Replication", "ReplicationState"]
