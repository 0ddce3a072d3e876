"""The assignment of replicas to brokers (org.apache.kafka.admin.AdminUtils, AdminZkClient's checks).

Leaders go round robin over the brokers. The followers are shifted by one more each round, so both spread
evenly. With racks, a partition's replicas are spread over the racks first. Pure: the caller passes the two
random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
)
from cluster.model import BrokerId, BrokerInfo


def assign_replicas(
    brokers: Sequence[BrokerInfo],
    partitions: int,
    factor: int,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> dict[int, tuple[BrokerId, ...]]:
    """The replicas of `partitions` partitions, from `first_partition` on. The first replica is the preferred
    leader.

    `start` is the index of the first partition's leader in the list of brokers, `shift` the distance of the
    followers from it. Raises InvalidPartitions, InvalidReplicationFactor, or InvalidRequest if only some
    brokers have a rack.
    """
    if partitions <= 0:
        raise InvalidPartitions("Number of partitions must be larger than 0.")
    if factor <= 0:
        raise InvalidReplicationFactor("Replication factor must be larger than 0.")
    if factor > len(brokers):
        raise InvalidReplicationFactor(
            f"Replication factor: {factor} larger than available brokers: {len(brokers)}."
        )
    racks = {broker.id: broker.rack for broker in brokers if broker.rack is not None}
    if racks and len(racks) < len(brokers):
        raise InvalidRequest("Not all brokers have rack information for replica rack aware assignment.")
    ids = _alternating(racks) if racks else sorted(broker.id for broker in brokers)
    assignment = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(ids) == 0:
            shift += 1
        leader = (partition + start) % len(ids)
        assignment[partition] = (
            _spread_over_racks(ids, racks, leader, shift, factor)
            if racks
            else _follow(ids, leader, shift, factor)
        )
    return assignment


def _follow(ids: list[BrokerId], leader: int, shift: int, factor: int) -> tuple[BrokerId, ...]:
    return (ids[leader], *(ids[_follower(leader, shift, nth, len(ids))] for nth in range(factor - 1)))


def _follower(leader: int, shift: int, nth: int, count: int) -> int:
    return (leader + 1 + (shift + nth) % (count - 1)) % count


def _spread_over_racks(
    ids: list[BrokerId], racks: Mapping[BrokerId, str], leader: int, shift: int, factor: int
) -> tuple[BrokerId, ...]:
    rack_count = len(set(racks.values()))
    chosen = [ids[leader]]
    used_racks = {racks[ids[leader]]}
    nth = 0
    while len(chosen) < factor:
        broker = ids[_follower(leader, shift * rack_count, nth, len(ids))]
        nth += 1
        rack_free = racks[broker] not in used_racks or len(used_racks) == rack_count
        if rack_free and broker not in chosen:
            chosen.append(broker)
            used_racks.add(racks[broker])
    return tuple(chosen)


def _alternating(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    columns = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(len(column) for column in columns)
    return [column[row] for row in range(longest) for column in columns if row < len(column)]


def validate_assignment(assignment: Mapping[int, Sequence[int]], first_partition: int = 0) -> None:
    """Raises InvalidReplicaAssignment unless partitions are consecutive and have equally many, distinct
    replicas.
    """
    if sorted(assignment) != list(range(first_partition, first_partition + len(assignment))):
        raise InvalidReplicaAssignment(
            f"Partitions should be consecutive from {first_partition}, but are {sorted(assignment)}."
        )
    for partition, replicas in assignment.items():
        if not replicas:
            raise InvalidReplicaAssignment(f"Partition {partition} has no replicas.")
        if len(set(replicas)) < len(replicas):
            raise InvalidReplicaAssignment(
                f"Duplicate brokers in the replicas of partition {partition}: {list(replicas)}."
            )
        if any(broker < 0 for broker in replicas):
            raise InvalidReplicaAssignment(
                f"Partition {partition} has a negative broker id: {list(replicas)}."
            )
    if len({len(replicas) for replicas in assignment.values()}) > 1:
        raise InvalidReplicaAssignment("All partitions should have the same number of replicas.")
