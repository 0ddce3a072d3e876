"""`reassign-partitions --generate`: an even spread with the fewest moves.

Broken if they failed: an operator who adds or drains a broker would copy more data than needed, or get an
uneven cluster, or two replicas in one rack.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.client.placement import Partition, spread
from cluster.controller.assignment import assign_replicas
from cluster.model import BrokerId, BrokerInfo

Placed = dict[Partition, list[int]]


def moves(before: Placed, after: Placed) -> int:
    return sum(len(set(after[one]) - set(brokers)) for one, brokers in before.items())


def loads(placed: Placed, brokers: list[int]) -> list[int]:
    counted = Counter(broker for replicas in placed.values() for broker in replicas)
    return [counted[broker] for broker in brokers]


def fewest(before: Placed, racks: dict[int, str | None]) -> tuple[int, int]:
    """The least sum of squared loads, and the fewest moves with it, by an exact minimum-cost flow.

    One unit of flow is one replica: source, partition, the partition in a rack, broker, sink. It is far too
    slow for real clusters.
    """
    rack = {broker: broker if name is None else name for broker, name in racks.items()}
    brokers = Counter(rack.values())
    total = sum(map(len, before.values()))
    even = 1000
    must = -even * even * 10
    edges: list[list[object]] = []
    out: dict[object, list[int]] = {}

    def edge(source: object, target: object, capacity: int, cost: int) -> None:
        for one in ((source, target, capacity, cost), (target, source, 0, -cost)):
            out.setdefault(one[0], []).append(len(edges))
            edges.append(list(one))

    for partition, replicas in before.items():
        edge("source", partition, len(replicas), 0)
        for name, count in brokers.items():
            inside = (partition, "in", name)
            edge(partition, inside, 1, must if len(replicas) >= len(brokers) else 0)
            extra = min(count - 1, max(len(replicas) - len(brokers), 0))
            if extra:
                edge(partition, inside, extra, 0)
            for broker in brokers and [one for one in rack if rack[one] == name]:
                edge(inside, broker, 1, 0 if broker in replicas else 1)
    for broker in rack:
        for unit in range(len(before)):
            edge(broker, "sink", 1, even * (2 * unit + 1))
    for _ in range(total):
        distance: dict[object, int] = {"source": 0}
        came: dict[object, int] = {}
        queue: list[object] = ["source"]
        for node in queue:
            for number in out.get(node, []):
                _, target, capacity, cost = edges[number]
                assert isinstance(capacity, int)
                assert isinstance(cost, int)
                far = distance[node] + cost
                if capacity and far < distance.get(target, 1 << 60):
                    distance[target], came[target] = far, number
                    queue.append(target)
        node = "sink"
        while node != "source":
            for number, change in ((came[node], -1), (came[node] ^ 1, 1)):
                capacity = edges[number][2]
                assert isinstance(capacity, int)
                edges[number][2] = capacity + change
            node = edges[came[node]][0]
    squares = moved = 0
    for source, target, capacity, cost in edges[::2]:
        assert isinstance(cost, int)
        if not capacity and target == "sink":
            squares += cost // even
        elif not capacity and isinstance(source, tuple) and len(source) == 3:
            moved += cost
    return squares, moved


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Placed, dict[int, str | None], dict[Partition, int]]:
    """Topics somewhere on the brokers 0 to 6, and the brokers that are to have them."""
    size = draw(st.integers(1, 6))
    choices: list[list[str | None]] = [[None], ["a"], ["a", "b"], ["a", "b", "c"]]
    names = draw(st.sampled_from(choices))
    targets = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size, unique=True))
    racks = {broker: draw(st.sampled_from(names)) for broker in targets}
    before: Placed = {}
    for topic in "tu"[: draw(st.integers(1, 2))]:
        factor = draw(st.integers(1, min(size, 3)))
        for number in range(draw(st.integers(1, 7))):
            before[topic, number] = draw(
                st.lists(st.integers(0, 6), min_size=factor, max_size=factor, unique=True)
            )
    return before, racks, {one: draw(st.integers(0, 1000)) for one in before}


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_the_spread_is_as_even_as_the_racks_allow_with_the_fewest_moves(
    cluster: tuple[Placed, dict[int, str | None], dict[Partition, int]],
) -> None:
    before, racks, sizes = cluster
    after = spread(before, racks, sizes)
    rack = {broker: broker if name is None else name for broker, name in racks.items()}
    for partition, replicas in after.items():
        assert len(replicas) == len(set(replicas)) == len(before[partition])
        assert len({rack[broker] for broker in replicas}) == min(len(replicas), len(set(rack.values())))
    squares, moved = fewest(before, racks)
    assert sum(load * load for load in loads(after, list(racks))) == squares
    assert moves(before, after) == moved
    if None in racks.values():
        assert max(loads(after, list(racks))) - min(loads(after, list(racks))) <= 1


def leaders(placed: Placed, brokers: list[int]) -> list[int]:
    counted = Counter(replicas[0] for replicas in placed.values())
    return [counted[broker] for broker in brokers]


def kafkas(partitions: int, brokers: list[int], seed: int) -> Placed:
    """A topic with three replicas as Kafka's tool would propose it."""
    chosen = random.Random(seed)
    infos = [BrokerInfo(BrokerId(broker), ()) for broker in brokers]
    start, shift = chosen.randrange(len(brokers)), chosen.randrange(len(brokers))
    placed = assign_replicas(infos, partitions, 3, start, shift)
    return {("t", number): [int(broker) for broker in replicas] for number, replicas in placed.items()}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (range(8), range(9)),
        (range(9), range(8)),
        (range(6), range(3, 9)),
    ],
    ids=["a broker more", "a broker fewer", "half replaced"],
)
def test_far_less_moves_than_with_kafkas_tool(seed: int, old: range, new: range) -> None:
    before = kafkas(120, list(old), seed)
    brokers = list(new)
    after = spread(before, dict.fromkeys(brokers))
    for counts in (loads(after, brokers), leaders(after, brokers)):
        assert max(counts) - min(counts) <= 1, seed
    # A broker gets no more than it lacks, so no two replicas change places.
    gained = zip(loads(before, brokers), loads(after, brokers), strict=True)
    assert moves(before, after) == sum(max(now - then, 0) for then, now in gained), seed
    assert moves(before, after) < moves(before, kafkas(120, brokers, seed + 100)), seed


def test_bytes_are_spread_too() -> None:
    sizes = {("t", number): 1000 if number % 3 == 0 else 10 for number in range(90)}
    before = {("t", number): [number % 3] for number in range(90)}
    after = spread(before, dict.fromkeys(range(6)), sizes)
    held = Counter(dict.fromkeys(range(6), 0))
    for partition, [broker] in after.items():
        held[broker] += sizes[partition]
    assert moves(before, after) == 45
    assert held[0] == 15 * 1000
    assert sum(size for broker, size in held.items() if broker > 2) > 15 * 1000


def test_a_partition_with_more_replicas_than_brokers_is_refused() -> None:
    with pytest.raises(ValueError, match="t-0 has more replicas than there are brokers"):
        spread({("t", 0): [0, 1]}, {0: None})
