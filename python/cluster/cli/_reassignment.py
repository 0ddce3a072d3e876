"""The JSON files of `logcore reassign-partitions`, and which replicas a reassignment moves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.cli._admin_tool import compact_json, repeated
from cluster.cli._common import CommandError

if TYPE_CHECKING:
    from cluster.client import PartitionReassignment, TopicPartitionReplica

Partition = tuple[str, int]

ANY = "any"
"""The broker chooses the log directory."""


@dataclass(frozen=True)
class Plan:
    """A reassignment file: the partitions in the file's order, with their replicas, and the directories."""

    entries: list[tuple[Partition, list[int]]]
    log_dirs: dict[TopicPartitionReplica, str]

    @property
    def replicas(self) -> dict[Partition, list[int]]:
        return dict(self.entries)

    def check(self) -> None:
        """Refuses a plan that cannot be executed."""
        if not self.entries:
            raise CommandError("Partition reassignment list cannot be empty")
        if not all(replicas for _, replicas in self.entries):
            raise CommandError("Partition replica list cannot be empty")
        if twice := repeated(partition for partition, _ in self.entries):
            raise CommandError(
                f"Partition reassignment contains duplicate topic partitions: {names_of(twice)}"
            )
        doubled = [
            f"{name_of(partition)} contains multiple entries for {','.join(map(str, repeated(replicas)))}"
            for partition, replicas in self.entries
            if repeated(replicas)
        ]
        if doubled:
            raise CommandError(
                f"Partition replica lists may not contain duplicate entries: {'. '.join(doubled)}"
            )


class Move(NamedTuple):
    """The brokers that have a partition, and those that get it."""

    sources: set[int]
    destinations: set[int]


def read_plan(contents: Any) -> Plan:
    """The reassignment of a JSON file. Raises CommandError."""
    from cluster.client import TopicPartitionReplica

    entries: list[tuple[Partition, list[int]]] = []
    log_dirs: dict[TopicPartitionReplica, str] = {}
    try:
        _check_version(contents)
        for one in contents.get("partitions", []):
            topic, number = str(one["topic"]), int(one["partition"])
            replicas = [int(broker) for broker in one["replicas"]]
            paths = one.get("log_dirs", [ANY] * len(replicas))
            if len(paths) != len(replicas):
                raise CommandError(
                    f"Size of replicas list {replicas} is different from size of log dirs list "
                    f"[{', '.join(map(str, paths))}] for partition {topic}-{number}"
                )
            entries.append(((topic, number), replicas))
            for broker, path in zip(replicas, paths, strict=True):
                if path != ANY:
                    log_dirs[TopicPartitionReplica(topic, number, broker)] = str(path)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(
            "--reassignment-json-file: each of its partitions needs a topic, a partition and a list of "
            f"replicas ({type(error).__name__}: {error})"
        ) from None
    return Plan(entries, log_dirs)


def read_topics(contents: Any) -> list[str]:
    """The topics of a JSON file. Raises CommandError."""
    try:
        _check_version(contents)
        topics = [str(one["topic"]) for one in contents.get("topics", [])]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(
            f"--topics-to-move-json-file: each of its topics needs a topic ({type(error).__name__}: {error})"
        ) from None
    if twice := repeated(topics):
        raise CommandError(f"List of topics to reassign contains duplicate entries: [{', '.join(twice)}]")
    return topics


def _check_version(contents: Any) -> None:
    version = int(contents.get("version", 1))
    if version != 1:
        raise CommandError(f"Not supported version field value {version}")


def reassignment_json(placed: Mapping[Partition, list[int]]) -> str:
    """The text of a reassignment file, which Kafka's tool takes too."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": replicas, "log_dirs": [ANY] * len(replicas)}
        for (topic, number), replicas in sorted(placed.items())
    ]
    return compact_json({"version": 1, "partitions": partitions})


def moves_of(
    current: Mapping[Partition, PartitionReassignment],
    proposed: Mapping[Partition, list[int]],
    now: Mapping[Partition, list[int]],
) -> dict[Partition, Move]:
    """The moves under way and the proposed ones.

    The sources of a partition that is moving already are the replicas that it had before.
    """
    moves = {
        partition: Move(set(one.replicas) - set(one.adding_replicas), set(one.adding_replicas))
        for partition, one in current.items()
    }
    for partition, replicas in proposed.items():
        sources = moves[partition].sources if partition in moves else set(now[partition])
        moves[partition] = Move(sources, set(replicas) - sources)
    return moves


def leader_throttles(moves: Mapping[Partition, Move]) -> dict[str, str]:
    """`leader.replication.throttled.replicas` of each topic."""
    return _throttled({partition: move.sources for partition, move in moves.items()})


def follower_throttles(moves: Mapping[Partition, Move]) -> dict[str, str]:
    """`follower.replication.throttled.replicas` of each topic."""
    return _throttled({partition: move.destinations for partition, move in moves.items()})


def _throttled(brokers: Mapping[Partition, set[int]]) -> dict[str, str]:
    topics: dict[str, set[str]] = {}
    for (topic, number), those in brokers.items():
        topics.setdefault(topic, set()).update(f"{number}:{broker}" for broker in those)
    return {topic: ",".join(sorted(parts)) for topic, parts in topics.items()}


def name_of(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def names_of(partitions: Iterable[Partition]) -> str:
    return ",".join(map(name_of, sorted(partitions)))
