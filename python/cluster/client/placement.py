"""Where replicas should be: an even spread over brokers that moves as few of them as possible.

Kafka's tool ignores where replicas are now, so it moves nearly all of them. Here each broker gets a quota of
replicas, the quotas differ by one at most (more only where the rack rule demands it), and a replica moves
only from a broker above its quota, or from a broker that is to have none.

The rack rule is Kafka's: a partition's replicas are in as many racks as there are, or as it has replicas.
Pure; the caller's thread.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

Partition = tuple[str, int]


def spread(
    current: Mapping[Partition, list[int]],
    racks: Mapping[int, str | None],
    sizes: Mapping[Partition, int] | None = None,
) -> dict[Partition, list[int]]:
    """New replicas of each partition, the leader first, on the brokers of `racks`.

    `racks` has the rack of each broker, or None for all of them. `sizes` in bytes decides which of several
    replicas moves, so that brokers hold equally much. Each partition keeps its number of replicas.
    """
    placement = _Placement(current, racks, sizes or {})
    placement.fill()
    placement.relieve()
    placement.improve()
    found = {
        partition: _in_order(list(before), placement.replicas[partition])
        for partition, before in current.items()
    }
    _spread_leaders(found, list(racks))
    return found


class _Placement:
    def __init__(
        self,
        current: Mapping[Partition, list[int]],
        racks: Mapping[int, str | None],
        sizes: Mapping[Partition, int],
    ) -> None:
        # Without racks, each broker is a rack of its own.
        self.rack: dict[int, Hashable] = {
            broker: broker if rack is None else rack for broker, rack in racks.items()
        }
        self.size = {partition: sizes.get(partition, 0) for partition in current}
        self.wanted = {partition: len(brokers) for partition, brokers in current.items()}
        racks_in_all = len(set(self.rack.values()))
        # How many replicas of a partition may be in a rack that has another one.
        self.doubles = {partition: max(count - racks_in_all, 0) for partition, count in self.wanted.items()}
        self.home = {
            partition: {broker for broker in brokers if broker in racks}
            for partition, brokers in current.items()
        }
        self.replicas: dict[Partition, set[int]] = {partition: set() for partition in current}
        self.on: dict[int, dict[str, set[Partition]]] = {broker: defaultdict(set) for broker in racks}
        self.load = Counter(dict.fromkeys(racks, 0))
        self.bytes = Counter(dict.fromkeys(racks, 0))
        for partition, brokers in current.items():
            for broker in brokers:
                if broker in racks:
                    self._add(partition, broker)
        for partition in current:
            self._keep_rack_rule(partition)
        self.quota = self._quotas()
        self.mean_bytes = sum(self.bytes.values()) / max(len(racks), 1)

    def fill(self) -> None:
        """Finds a broker for each replica that has lost its own, the largest first."""
        for partition in sorted(self.replicas, key=lambda one: (-self.size[one], one)):
            while len(self.replicas[partition]) < self.wanted[partition]:
                self._place(partition)

    def relieve(self) -> None:
        """Moves replicas away from brokers above their quota."""
        for broker in sorted(self.load):
            while self.load[broker] > self.quota[broker] and self._move_away(broker):
                pass

    def improve(self) -> None:
        """Repeats cycles of moves that save something, until there are none.

        The quotas were given before it was known which replicas can go where, so another broker may be better
        for the one replica more.
        """
        while (cycle := self._saving_cycle()) and self._turn(cycle):
            pass

    def _place(self, partition: Partition) -> None:
        topic = partition[0]

        def rank(broker: int) -> tuple[int, int, int]:
            return (len(self.on[broker][topic]), self.bytes[broker], broker)

        open_to = [broker for broker in self.load if self._fits(partition, broker)]
        with_room = [broker for broker in open_to if self.load[broker] < self.quota[broker]]
        if with_room:
            self._add(partition, min(with_room, key=rank))
            return
        path = self._path(dict.fromkeys(open_to, 0))
        if path:
            self._shift(path)
            if self._fits(partition, path[0]):
                self._add(partition, path[0])
                return
        if not open_to:
            raise ValueError(f"partition {topic}-{partition[1]} has more replicas than there are brokers")
        self._add(
            partition, min(open_to, key=lambda broker: (self.load[broker] - self.quota[broker], broker))
        )

    def _move_away(self, broker: int) -> bool:
        """Moves one replica from the broker, directly or by way of others. False if none can move."""
        with_room = [other for other in self.load if self.load[other] < self.quota[other]]
        for other in sorted(with_room, key=lambda one: (self.bytes[one], one)):
            moved = self._best(broker, other)
            if moved is not None:
                self._move(moved, broker, other)
                return True
        path = self._path({broker: 0})
        return path is not None and self._shift(path)

    def _best(self, source: int, target: int) -> Partition | None:
        """The replica to move: of the topic with most of them here, of a size that evens the bytes out."""
        here, there = self.on[source], self.on[target]
        surplus = (self.bytes[source] - self.mean_bytes) / max(self.load[source] - self.quota[source], 1)
        deficit = (self.mean_bytes - self.bytes[target]) / max(self.quota[target] - self.load[target], 1)
        ideal = max(min(surplus, deficit), 0)
        for topic in sorted(here, key=lambda name: (len(there[name]) - len(here[name]), name)):
            fitting = [one for one in here[topic] if self._fits(one, target, source)]
            if fitting:
                return min(
                    fitting, key=lambda one: (source in self.home[one], abs(self.size[one] - ideal), one)
                )
        return None

    def _path(self, costs: dict[int, int]) -> list[int] | None:
        """The cheapest chain of moves from one of the brokers with these costs to one with room.

        A move costs 1 if the replica was at home, 0 if it moves anyway, and nothing is saved on the way.
        """
        best = dict(costs)
        before: dict[int, int] = {}
        queue = [(cost, broker) for broker, cost in costs.items()]
        heapq.heapify(queue)
        while queue:
            cost, broker = heapq.heappop(queue)
            if cost > best[broker]:
                continue
            if self.load[broker] < self.quota[broker]:
                path = [broker]
                while path[0] in before:
                    path.insert(0, before[path[0]])
                return path
            for other in self.load:
                step = self._step(broker, other)
                step = None if step is None else max(step, 0)
                if step is not None and cost + step < best.get(other, 1 << 30):
                    best[other], before[other] = cost + step, broker
                    heapq.heappush(queue, (cost + step, other))
        return None

    def _step(self, source: int, target: int) -> int | None:
        """The cost of the cheapest move between two brokers; None if there is none."""
        return min((self._cost(one, source, target) for one in self._movable(source, target)), default=None)

    def _movable(self, source: int, target: int) -> Iterator[Partition]:
        for topic in self.on[source].values():
            for one in topic:
                if self._fits(one, target, source):
                    yield one

    def _cost(self, partition: Partition, source: int, target: int) -> int:
        """Leaving home costs 1 and coming home saves 1."""
        home = self.home[partition]
        return (source in home) - (target in home)

    def _saving_cycle(self) -> list[tuple[int, int, int | None]] | None:
        """A cycle of negative cost (Bellman and Ford): steps from broker to broker.

        A step with a cost moves a replica. One without says that the first broker keeps one replica more and
        the second one fewer; it costs what that does to the evenness, which counts before any move.
        """
        uneven = 4 * sum(self.wanted.values()) + 1
        edges: list[tuple[int, int, int, int | None]] = []
        for source in self.load:
            for target in self.load:
                if source == target:
                    continue
                edges.append((source, target, uneven * (self.load[source] - self.load[target] + 1), None))
                step = self._step(source, target)
                if step is not None:
                    edges.append((source, target, step, step))
        far = dict.fromkeys(self.load, 0)
        came: dict[int, tuple[int, int | None]] = {}
        broker: int | None = None
        for _ in self.load:
            broker = None
            for source, target, cost, step in edges:
                if far[source] + cost < far[target]:
                    far[target], came[target], broker = far[source] + cost, (source, step), target
            if broker is None:
                return None
        assert broker is not None
        for _ in self.load:
            broker = came[broker][0]
        cycle: list[tuple[int, int, int | None]] = []
        while not cycle or cycle[-1][0] != cycle[0][1]:
            source, step = came[broker]
            cycle.append((source, broker, step))
            broker = source
        return cycle

    def _turn(self, cycle: list[tuple[int, int, int | None]]) -> bool:
        """Makes the moves of a cycle. False, with nothing changed, if one of them rules out another."""
        done: list[tuple[Partition, int, int]] = []
        for source, target, step in cycle:
            if step is None:
                continue
            found = (one for one in self._movable(source, target) if self._cost(one, source, target) == step)
            moved = min(found, key=lambda one: (self.size[one], one), default=None)
            if moved is None:
                for partition, before, after in reversed(done):
                    self._move(partition, after, before)
                return False
            self._move(moved, source, target)
            done.append((moved, source, target))
        return True

    def _shift(self, path: list[int]) -> bool:
        """Moves one replica along each step, the last one first. False if a step was not possible."""
        for source, target in reversed(list(itertools.pairwise(path))):
            moved = self._best(source, target)
            if moved is None:
                return False
            self._move(moved, source, target)
        return True

    def _fits(self, partition: Partition, broker: int, instead_of: int | None = None) -> bool:
        """The partition may have a replica on the broker, by the rack rule too."""
        replicas = self.replicas[partition]
        if broker in replicas:
            return False
        racks = {self.rack[one] for one in replicas if one != instead_of}
        racks.add(self.rack[broker])
        count = len(replicas) + (instead_of is None)
        return count - len(racks) <= self.doubles[partition]

    def _keep_rack_rule(self, partition: Partition) -> None:
        while True:
            count = Counter(self.rack[broker] for broker in self.replicas[partition])
            if sum(count.values()) - len(count) <= self.doubles[partition]:
                return
            doubled = [broker for broker in self.replicas[partition] if count[self.rack[broker]] > 1]
            self._remove(partition, max(doubled, key=lambda broker: (self.load[broker], broker)))

    def _quotas(self) -> dict[int, int]:
        """How many replicas each broker is to have. Of equals, the one that has more now gets one more."""
        brokers = Counter(self.rack.values())
        least: dict[Hashable, int] = {}
        most: dict[Hashable, int] = {}
        for rack, count in brokers.items():
            least[rack] = sum(wanted >= len(brokers) for wanted in self.wanted.values())
            most[rack] = sum(min(count, 1 + doubles) for doubles in self.doubles.values())
        quota = dict.fromkeys(self.rack, 0)
        total = Counter(dict.fromkeys(brokers, 0))

        def give(limit: Mapping[Hashable, int], stop: Callable[[], bool]) -> None:
            queue = [(0, -self.load[broker], broker) for broker in quota]
            queue = [(quota[broker], held, broker) for _, held, broker in queue]
            heapq.heapify(queue)
            while queue and not stop():
                _, held, broker = heapq.heappop(queue)
                rack = self.rack[broker]
                if total[rack] < limit[rack]:
                    quota[broker] += 1
                    total[rack] += 1
                    heapq.heappush(queue, (quota[broker], held, broker))

        everything = sum(self.wanted.values())
        give(least, lambda: False)
        give(most, lambda: sum(total.values()) >= everything)
        return quota

    def _add(self, partition: Partition, broker: int) -> None:
        self.replicas[partition].add(broker)
        self.on[broker][partition[0]].add(partition)
        self.load[broker] += 1
        self.bytes[broker] += self.size[partition]

    def _remove(self, partition: Partition, broker: int) -> None:
        self.replicas[partition].remove(broker)
        self.on[broker][partition[0]].remove(partition)
        self.load[broker] -= 1
        self.bytes[broker] -= self.size[partition]

    def _move(self, partition: Partition, source: int, target: int) -> None:
        self._remove(partition, source)
        self._add(partition, target)


def _in_order(before: list[int], replicas: Iterable[int]) -> list[int]:
    """The replicas that stay keep their positions; new ones take those of the ones that leave."""
    kept = set(replicas)
    new = iter(sorted(kept - set(before)))
    return [broker if broker in kept else next(new) for broker in before]


def _spread_leaders(placed: dict[Partition, list[int]], brokers: list[int]) -> None:
    """Changes the order of replicas until no broker leads two partitions more than another could."""
    led: dict[int, set[Partition]] = {broker: set() for broker in brokers}
    for partition, replicas in placed.items():
        led[replicas[0]].add(partition)
    while any(_pass_leadership_on(broker, led, placed) for broker in sorted(led, key=lambda b: -len(led[b]))):
        pass


def _pass_leadership_on(
    start: int, led: dict[int, set[Partition]], placed: dict[Partition, list[int]]
) -> bool:
    """Takes one partition from the broker, by a chain of replicas, for one that leads at least two fewer."""
    came: dict[int, tuple[int, Partition]] = {}
    queue = [start]
    for broker in queue:
        if len(led[broker]) <= len(led[start]) - 2:
            while broker != start:
                source, partition = came[broker]
                replicas = placed[partition]
                position = replicas.index(broker)
                replicas[0], replicas[position] = replicas[position], replicas[0]
                led[source].remove(partition)
                led[broker].add(partition)
                broker = source
            return True
        for partition in sorted(led[broker]):
            for other in placed[partition][1:]:
                if other != start and other not in came:
                    came[other] = (broker, partition)
                    queue.append(other)
    return False
