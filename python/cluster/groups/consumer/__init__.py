"""Groups of the consumer protocol (KIP-848): the coordinator assigns partitions, and each member moves to its
target by itself, without stopping the others.

- `machine.py`: the groups of one partition: heartbeats, sessions, loading.
- `classic_members.py`: the requests of members of the classic protocol.
- `store.py`: writes, timers and the memory limit.
- `membership.py`, `assignment.py`, `reconcile.py`: what a heartbeat changes.
- `classic.py`: changes of the protocol.
- `group.py`, `values.py`, `messages.py`, `records.py`: a group's entries and their records.

Pure. Source: GroupMetadataManager and `modern.consumer` of Kafka 3.9's group coordinator; regular expressions
as Kafka 4.0.
"""
