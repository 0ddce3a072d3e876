"""The kinds of faults. Each strikes a running cluster, and says which partitions may stop taking writes.

The longest allowed gap between two acknowledgements of any other partition:

- A killed process is noticed at once: its connection closes and its address refuses the next.
- A process that hangs, or is cut off from the coordinator, falls by its session. So does a killed controller.
- A follower that cannot fetch leaves the in-sync replicas after replica.lag.time.max.ms.
- A client notices an unanswered request after its own timeout, which comes on top.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.disks import slow_disks
from tests.faults.network import CLIENTS

from .cluster import BROKERS, LAG_SECONDS, SESSION_SECONDS, AwayError, BrokerProcess, Cluster, State
from .load import PARTITIONS, TIMEOUT_MS

ALL = frozenset(range(PARTITIONS))
OUT_OF_SYNC_SECONDS = 10.0
_LENGTH_AT, _EPOCH_AT, _EPOCH_END = 8, 12, 16
"""Positions in a record batch, after its base offset."""
BUSY_SECONDS = 4.0
"""What a busy machine adds to every gap."""
KILLED_SECONDS = SESSION_SECONDS + 1.0 + BUSY_SECONDS
SLOW_SECONDS = 3.0 + BUSY_SECONDS
HUNG_SECONDS = SESSION_SECONDS + 2 * TIMEOUT_MS / 1000 + BUSY_SECONDS
LAGGING_SECONDS = 2 * LAG_SECONDS + 2 * TIMEOUT_MS / 1000 + BUSY_SECONDS
"""The leader looks for lagging followers every half of replica.lag.time.max.ms."""


@dataclass(frozen=True)
class Struck:
    """``stops``: the partitions for which writes may stop."""

    about: str
    stops: frozenset[int] = frozenset()
    heal: Callable[[], None] = lambda: None
    """Runs before :meth:`Cluster.heal`."""


Strike = Callable[["Scene"], Struck]


@dataclass(frozen=True)
class Scene:
    """The cluster, with the states of the topic's partitions and the controller when the fault begins."""

    cluster: Cluster
    topic: str
    chance: random.Random
    states: tuple[State, ...]
    controller_id: int

    def leader(self) -> BrokerProcess:
        """The leader of a partition, drawn by chance; another broker if that one does not run."""
        return self._running(self.chance.choice(self.states).leader)

    def controller(self) -> BrokerProcess:
        return self._running(self.controller_id)

    def _running(self, broker_id: int) -> BrokerProcess:
        running = [broker for broker in self.cluster.brokers if broker.runs and not broker.suspended]
        return next((broker for broker in running if broker.id == broker_id), running[0])

    def others(self, broker: BrokerProcess) -> list[BrokerProcess]:
        return [other for other in self.cluster.brokers if other is not broker]

    def led_by(self, broker: BrokerProcess) -> frozenset[int]:
        states = enumerate(self.states)
        return frozenset(partition for partition, state in states if state.leader == broker.id)

    def stuck_with(self, broker: BrokerProcess) -> frozenset[int]:
        """What it leads; every partition if it is the controller, which each change of an ISR needs."""
        return ALL if broker.id == self.controller_id else self.led_by(broker)

    def cut(self, senders: list[int], receivers: list[int]) -> None:
        for sender in senders:
            for receiver in receivers:
                self.cluster.network.cut(sender, receiver)


# ---- processes ----


def leader_killed(scene: Scene) -> Struck:
    leader = scene.leader()
    leader.kill()
    return Struck(leader.name)


def controller_killed(scene: Scene) -> Struck:
    controller = scene.controller()
    controller.kill()
    return Struck(controller.name)


def leader_and_controller_killed(scene: Scene) -> Struck:
    """With a single replica left, writes stop: min.insync.replicas is 2."""
    controller = scene.controller()
    leader = scene.chance.choice(scene.others(controller))
    controller.kill()
    leader.kill()
    return Struck(f"{controller.name}, {leader.name}", ALL)


def one_after_the_other_killed(scene: Scene) -> Struck:
    """A rolling crash: each broker is killed once the one before it is in sync again."""
    brokers = scene.chance.sample(scene.cluster.brokers, BROKERS)
    for broker in brokers[:-1]:
        broker.kill()
        broker.end()
        broker.start()
        scene.cluster.until("the broker is in sync again", lambda: scene.cluster.is_whole(scene.topic))
    brokers[-1].kill()
    return Struck(", ".join(broker.name for broker in brokers))


def killed_and_started_at_once(scene: Scene) -> Struck:
    """Its registration is taken over, while its session of before still lives."""
    leader = scene.leader()
    leader.kill()
    leader.start()
    return Struck(leader.name)


def leader_stopped(scene: Scene) -> Struck:
    """SIGTERM: a controlled shutdown."""
    leader = scene.leader()
    leader.end()
    return Struck(leader.name)


def leader_hangs(scene: Scene) -> Struck:
    leader = scene.leader()
    leader.suspend()
    return Struck(leader.name)


def controller_hangs(scene: Scene) -> Struck:
    controller = scene.controller()
    controller.suspend()
    return Struck(controller.name)


# ---- networks ----


def _from_followers(scene: Scene, out: bool, into: bool) -> Struck:
    leader = scene.leader()
    stops = scene.stuck_with(leader)
    others = [other.number for other in scene.others(leader)]
    if out:
        scene.cut([leader.number], others)
    if into:
        scene.cut(others, [leader.number])
    return Struck(leader.name, stops)


def leader_cut_from_followers(scene: Scene) -> Struck:
    """It lives and its session lives, so it stays the leader, without a follower."""
    return _from_followers(scene, out=True, into=True)


def leader_not_heard_by_followers(scene: Scene) -> Struck:
    return _from_followers(scene, out=True, into=False)


def leader_deaf_to_followers(scene: Scene) -> Struck:
    return _from_followers(scene, out=False, into=True)


def _from_coordinator(scene: Scene, out: bool, into: bool) -> Struck:
    leader = scene.leader()
    members = [member.number for member in scene.cluster.ensemble.members]
    if out:
        scene.cut([leader.number], members)
    if into:
        scene.cut(members, [leader.number])
    return Struck(leader.name)


def leader_cut_from_coordinator(scene: Scene) -> Struck:
    """Another leads, and it goes on as a leader that no follower fetches from."""
    return _from_coordinator(scene, out=True, into=True)


def leader_not_heard_by_coordinator(scene: Scene) -> Struck:
    return _from_coordinator(scene, out=True, into=False)


def leader_deaf_to_coordinator(scene: Scene) -> Struck:
    return _from_coordinator(scene, out=False, into=True)


def _from_clients(scene: Scene, out: bool, into: bool) -> Struck:
    leader = scene.leader()
    stops = scene.led_by(leader)
    if out:
        scene.cut([leader.number], [CLIENTS])
    if into:
        scene.cut([CLIENTS], [leader.number])
    return Struck(leader.name, stops)


def leader_cut_from_clients(scene: Scene) -> Struck:
    """The brokers reach it, so it stays the leader of what no client can write."""
    return _from_clients(scene, out=True, into=True)


def leader_not_heard_by_clients(scene: Scene) -> Struck:
    """It carries out writes whose answers are lost."""
    return _from_clients(scene, out=True, into=False)


def leader_deaf_to_clients(scene: Scene) -> Struck:
    return _from_clients(scene, out=False, into=True)


def leader_cut_off(scene: Scene) -> Struck:
    leader = scene.leader()
    rest = [*(each.number for each in scene.others(leader)), CLIENTS]
    rest += [member.number for member in scene.cluster.ensemble.members]
    scene.cut([leader.number], rest)
    scene.cut(rest, [leader.number])
    return Struck(leader.name)


def leaders_network_slow(scene: Scene) -> Struck:
    leader, chance = scene.leader(), scene.chance
    rest = [*(each.number for each in scene.others(leader)), CLIENTS]
    rest += [member.number for member in scene.cluster.ensemble.members]
    pairs = [pair for each in rest for pair in ((leader.number, each), (each, leader.number))]
    delay_ms, loss = chance.randrange(10, 60), chance.uniform(0.0, 0.02)
    scene.cluster.network.slow_down(pairs, delay_ms, loss, chance.randrange(1 << 30))
    return Struck(f"{leader.name}, {delay_ms} ms, loss {loss:.3f}")


# ---- disks ----


def _slow_disk(scene: Scene, broker: BrokerProcess) -> Struck:
    milliseconds = scene.chance.randrange(5, 50)
    heal = slow_disks([broker.pid], "pwrite64,fsync,fdatasync,ftruncate", milliseconds / 1000)
    return Struck(f"{broker.name}, {milliseconds} ms", heal=heal)


def leaders_disk_slow(scene: Scene) -> Struck:
    return _slow_disk(scene, scene.leader())


def followers_disk_slow(scene: Scene) -> Struck:
    return _slow_disk(scene, scene.chance.choice(scene.others(scene.leader())))


def disk_full(scene: Scene) -> Struck:
    """A leader gives up what it cannot write, and a follower leaves the ISR until there is space."""
    broker = scene.chance.choice(scene.cluster.brokers)
    broker.fill_disk()
    return Struck(broker.name)


def followers_bit_flipped(scene: Scene) -> Struck:
    """A bit of a log changes while its broker is down, behind the last flush: recovery must find it."""
    broker = scene.chance.choice(scene.others(scene.leader()))
    broker.kill()

    def is_out() -> bool:
        try:
            return all(broker.id not in state.isr for state in scene.cluster.states(scene.topic))
        except AwayError:
            return False

    try:
        scene.cluster.until(f"{broker.name} is out of sync", is_out, OUT_OF_SYNC_SECONDS)
    except AssertionError:
        # Another fault keeps it in the ISR. With its log damaged there, it could lead and lose records.
        return Struck(f"{broker.name}, still in sync")
    segment = broker.segments(scene.topic, scene.chance.randrange(PARTITIONS))[-1]
    about = _flip_a_bit(segment, scene.chance)
    return Struck(f"{broker.name}, {about}")


def _flip_a_bit(segment: Path, chance: random.Random) -> str:
    data = bytearray(segment.read_bytes())
    places = [at for at, covered in enumerate(_covered(data)) if covered]
    if not places:
        return f"{segment.parent.name}/{segment.name} is empty"
    at, bit = chance.choice(places), chance.randrange(8)
    data[at] ^= 1 << bit
    segment.write_bytes(data)
    return f"bit {bit} of byte {at} of {segment.parent.name}/{segment.name}, {len(data)} bytes long"


def _covered(data: bytes) -> list[bool]:
    """The bytes that a damage is noticed in: a batch's checksum does not cover its base offset and epoch."""
    covered = [True] * len(data)
    batch = 0
    while batch + _EPOCH_END <= len(data):
        covered[batch : batch + _LENGTH_AT] = [False] * _LENGTH_AT
        covered[batch + _EPOCH_AT : batch + _EPOCH_END] = [False] * (_EPOCH_END - _EPOCH_AT)
        batch += _EPOCH_AT + int.from_bytes(data[batch + _LENGTH_AT : batch + _EPOCH_AT], "big")
    return covered


# ---- the coordinator ----


def coordinators_leader_killed(scene: Scene) -> Struck:
    """A single server is down until the fault ends. Without a change of leaders, nothing needs it."""
    leader = scene.cluster.ensemble.leader()
    leader.kill()
    return Struck(leader.name)


def coordinators_leader_hangs(scene: Scene) -> Struck:
    leader = scene.cluster.ensemble.leader()
    leader.suspend()
    return Struck(leader.name)


FAULTS: dict[Strike, float] = {
    leader_killed: KILLED_SECONDS,
    controller_killed: KILLED_SECONDS,
    leader_and_controller_killed: KILLED_SECONDS,
    one_after_the_other_killed: KILLED_SECONDS,
    killed_and_started_at_once: KILLED_SECONDS,
    leader_stopped: KILLED_SECONDS,
    leader_hangs: HUNG_SECONDS,
    controller_hangs: HUNG_SECONDS,
    leader_cut_from_followers: LAGGING_SECONDS,
    leader_not_heard_by_followers: LAGGING_SECONDS,
    leader_deaf_to_followers: LAGGING_SECONDS,
    leader_cut_from_coordinator: HUNG_SECONDS,
    leader_not_heard_by_coordinator: HUNG_SECONDS,
    leader_deaf_to_coordinator: HUNG_SECONDS,
    leader_cut_from_clients: SLOW_SECONDS,
    leader_not_heard_by_clients: SLOW_SECONDS,
    leader_deaf_to_clients: SLOW_SECONDS,
    leader_cut_off: HUNG_SECONDS,
    leaders_network_slow: SLOW_SECONDS,
    leaders_disk_slow: SLOW_SECONDS,
    followers_disk_slow: LAGGING_SECONDS,
    disk_full: LAGGING_SECONDS,
    followers_bit_flipped: KILLED_SECONDS,
    coordinators_leader_killed: SLOW_SECONDS,
    coordinators_leader_hangs: HUNG_SECONDS,
}
"""Each kind, with the longest allowed gap between two acknowledgements of a partition."""

ALONE = frozenset({one_after_the_other_killed})
"""Kinds that wait for a healthy cluster, so they do not strike together with another."""
