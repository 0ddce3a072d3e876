"""Groups of the consumer protocol without a broker: topics, a log, and clients that beat."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import InvalidRegularExpression
from cluster.groups.assignors import Assignment
from cluster.groups.consumer.group import ConsumerGroup
from cluster.groups.consumer.messages import ConsumerLimits, Heartbeat, HeartbeatResult
from cluster.groups.consumer.values import Topic
from cluster.groups.messages import GroupLimits, Write
from cluster.groups.partition import PartitionGroups
from cluster.groups.records import encode_write
from cluster.model import TopicId
from cluster.state_topics import Entry, Respond

SESSION_MS = 45_000
REBALANCE_MS = 60_000
GROUP = "g"


class Topics:
    """The cluster's topics."""

    def __init__(self, **partitions: int) -> None:
        self._topics: dict[str, Topic] = {}
        self._ids = itertools.count(1)
        self.version = 0
        for name, count in partitions.items():
            self.create(name, count)

    def create(self, name: str, partitions: int) -> None:
        """Creates a topic, or one of the same name anew."""
        self._topics[name] = Topic(TopicId(next(self._ids).to_bytes(16, "big")), partitions)
        self.version += 1

    def grow(self, name: str, partitions: int) -> None:
        """The topic has this many partitions."""
        self._topics[name] = self._topics[name]._replace(partitions=partitions)
        self.version += 1

    def delete(self, name: str) -> None:
        """Deletes a topic."""
        del self._topics[name]
        self.version += 1

    def names(self) -> list[str]:
        """All names."""
        return list(self._topics)

    def topic(self, name: str) -> Topic | None:
        """As ClusterTopics."""
        return self._topics.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        """As ClusterTopics."""
        return next((name for name, topic in self._topics.items() if topic.id == topic_id), None)

    def matching(self, regex: str) -> frozenset[str]:
        """As ClusterTopics; short expressions only."""
        try:
            return frozenset(name for name in self._topics if re.fullmatch(regex, name))
        except re.error as error:
            raise InvalidRegularExpression(str(error)) from None

    def by_name(self, assignment: Assignment) -> dict[str, list[int]]:
        """An assignment by the topics' names."""
        return {
            name: sorted(numbers)
            for topic, numbers in assignment.items()
            if (name := self.name_of(topic)) is not None
        }


@dataclass
class World:
    """A machine whose writes are in the log at once, or refused, and on the replicas after `settle`."""

    topics: Topics
    limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    group_limits: GroupLimits = field(default_factory=lambda: GroupLimits(initial_delay_ms=0))
    now: int = 1_000
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)
    refusal: int = 0
    """The error of appends, or 0."""
    replicated: int = 0
    """How many records are on the replicas."""

    def __post_init__(self) -> None:
        self._tokens = itertools.count(1)
        self._ids = itertools.count(1)
        self.machine = self.new_machine()

    def new_machine(self) -> PartitionGroups:
        """A machine without groups."""
        return PartitionGroups(self.group_limits, lambda: f"m{next(self._ids)}", self.limits, self.topics)

    def restarted(self, log: Iterable[tuple[bytes, bytes | None]] | None = None) -> PartitionGroups:
        """A machine that has read the log."""
        machine = self.new_machine()
        assert machine.load([Entry(key, value) for key, value in (self.log if log is None else log)]) == 0
        assert not machine.loaded(self.now)
        return machine

    def call(self, call: Callable[[PartitionGroups, int, int], Iterable[object]]) -> int:
        """Calls the machine. Returns the token; its writes wait."""
        token = next(self._tokens)
        self.take(call(self.machine, token, self.now))
        return token

    def take(self, actions: Iterable[object]) -> None:
        """Keeps answers and appends writes."""
        for action in actions:
            if isinstance(action, Respond):
                assert action.token not in self.answers, "a request is answered once"
                self.answers[action.token] = action.result
                continue
            assert isinstance(action, Write)
            if self.refusal:
                self.take(self.machine.stored(action.id, self.refusal, self.now))
            else:
                self.log.extend(encode_write(action))
                self.writes.append(action)

    def settle(self, error: int = 0) -> None:
        """Ends all writes, with the error or on all replicas."""
        while self.writes:
            write = self.writes.pop(0)
            self.replicated = len(self.log)
            self.take(self.machine.stored(write.id, error, self.now))

    def ask(self, call: Callable[[PartitionGroups, int, int], Iterable[object]]) -> Any:
        """Calls the machine, carries out its writes and returns the answer."""
        token = self.call(call)
        self.settle()
        return self.answers[token]

    def beat(self, member: str, epoch: int, **fields: Any) -> HeartbeatResult:
        """A heartbeat."""
        request = Heartbeat(GROUP, member, epoch, **fields)
        result = self.ask(lambda machine, token, now: machine.consumer_heartbeat(token, request, now))
        assert isinstance(result, HeartbeatResult)
        return result

    def join(self, member: str, *topics: str, **fields: Any) -> HeartbeatResult:
        """A heartbeat that joins."""
        names = frozenset(topics) if topics or "regex" not in fields else None
        return self.beat(member, 0, rebalance_timeout_ms=REBALANCE_MS, topics=names, owned={}, **fields)

    def wait(self, by_ms: int) -> None:
        """Time passes."""
        end = self.now + by_ms
        while (due := self.machine.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.take(self.machine.advance(self.now))
            self.settle()
        self.now = end

    @property
    def group(self) -> ConsumerGroup:
        """The group."""
        found = self.machine.consumer.get(GROUP)
        assert found is not None
        return found

    def assigned(self) -> Mapping[str, dict[str, list[int]]]:
        """What each member has, by name."""
        return {
            member: self.topics.by_name(self.group.current(member).assigned) for member in self.group.members
        }
