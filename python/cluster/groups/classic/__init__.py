"""Groups of the classic protocol: members join and sync together, and the leader assigns partitions.

- `machine.py`: the groups of one partition: timers, views, changes of the protocol, loading.
- `membership.py`: requests of members.
- `rebalance.py`: the join phase and the sync phase.
- `table.py`, `group.py`: the groups by their ids, and the data of one.

Pure. A group holds its committed offsets, but `cluster.groups.offsets` has their rules. Does not know groups
of the consumer protocol. Source: kafka.coordinator.group.GroupCoordinator.
"""
