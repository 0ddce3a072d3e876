"""Random lives of a group that both protocols use, checked against its invariants.

If it failed, two members could read the same partition at once, a member could wait for ever for partitions,
a refused write could leave traces, or a broker that takes over could know another group than the one before.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    IllegalGeneration,
    MemberIdRequired,
    NotEnoughReplicas,
    RequestTimedOut,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from cluster.groups import Heartbeat, Join, Leaving, Sync
from cluster.groups.classic.group import GroupState
from cluster.groups.consumer.group import ConsumerGroup, Kind, _bytes_of
from cluster.groups.messages import JoinResult, SyncResult
from cluster.model import TopicId
from cluster.state_topics import Entry
from logcore._native import decode_data, encode_data
from tests.groups.consumers import GROUP, REBALANCE_MS, SESSION_MS, Topics, World

TOPICS = ("t", "u", "v")
GONE = {
    error.code
    for error in (UnknownMemberId, FencedMemberEpoch, GroupIdNotFound, FencedInstanceId, IllegalGeneration)
}

Partitions = frozenset[tuple[TopicId, int]]


def flat(assignment: Any) -> Partitions:
    return frozenset((topic, number) for topic, numbers in assignment.items() for number in numbers)


def nested(partitions: Partitions) -> dict[TopicId, frozenset[int]]:
    return {topic: frozenset(number for one, number in partitions if one == topic) for topic, _ in partitions}


class Client:
    """A member of the consumer protocol, with one heartbeat under way at most."""

    def __init__(self, world: World, name: str, instance: str | None) -> None:
        self.world, self.name, self.instance = world, name, instance
        self.lives = 0
        self.subscribed = frozenset({"t"})
        self.reset()
        self.token: int | None = None
        self.asked: Heartbeat | None = None

    def reset(self) -> None:
        """It abandons everything, and joins next."""
        self.epoch, self.owned, self.full = 0, frozenset[tuple[TopicId, int]](), True
        self.target: Partitions | None = None

    @property
    def member(self) -> str:
        return f"{self.name}.{self.lives}"

    def send(self, epoch: int | None = None) -> None:
        """Sends a heartbeat, unless one is under way."""
        if self.token is not None:
            return
        self.asked = Heartbeat(
            GROUP,
            self.member,
            self.epoch if epoch is None else epoch,
            self.instance,
            rebalance_timeout_ms=REBALANCE_MS if self.full else -1,
            topics=self.subscribed if self.full else None,
            owned=nested(self.owned),
        )
        self.full = False
        asked = self.asked
        self.token = self.world.call(
            lambda machine, token, now: machine.consumer_heartbeat(token, asked, now)
        )
        self.receive()

    def receive(self, lost: bool = False) -> None:
        """Takes the response, if it is there."""
        if self.token is None or (self.token not in self.world.answers and not lost):
            return
        result = self.world.answers.pop(self.token, None)
        self.token = None
        if lost or result is None:
            self.full = True
        elif result.error in GONE:
            self.reset()
        elif result.error:
            self.full = True
            if result.error != UnreleasedInstanceId.code:
                assert result.error not in (35, 42), f"a correct request was refused: {result}"
        else:
            assert result.epoch >= self.epoch, "epochs never go back"
            self.epoch = result.epoch
            if result.assignment is not None:
                self.target = flat(result.assignment)

    def apply(self) -> None:
        """Gives up what it must and takes what it gets."""
        if self.target is not None:
            self.owned, self.target = self.target, None

    def leave(self, epoch: int) -> None:
        """Leaves; another process has its name next."""
        if self.token is None and self.epoch:
            self.reset_for(lambda: self.send(epoch))

    def reset_for(self, last: Any) -> None:
        self.owned = frozenset()
        last()
        self.token = None
        self.lives += 1
        self.reset()


class ClassicClient:
    """A member of the classic protocol. The leader assigns as the cooperative assignor does."""

    def __init__(self, world: World, name: str, cooperative: bool) -> None:
        self.world, self.name, self.cooperative = world, name, cooperative
        self.token: int | None = None
        self.reset()

    def reset(self) -> None:
        self.member, self.generation, self.state = "", -1, "out"
        self.owned: Partitions = frozenset()
        self.members: tuple[Any, ...] = ()

    def subscription(self) -> bytes:
        topics = self.world.topics
        fields = {
            "topics": ["t"],
            "user_data": None,
            "owned_partitions": [
                {"topic": name, "partitions": numbers}
                for name, numbers in topics.by_name(nested(self.owned)).items()
            ],
        }
        return b"\0\1" + encode_data("ConsumerProtocolSubscription", 1, fields)

    def step(self) -> None:
        """Does what comes next."""
        self.receive()
        if self.token is not None:
            return
        if self.state == "out":
            if not self.cooperative:
                self.owned = frozenset()
            request = Join(
                GROUP, self.member, None, "c", "/h", REBALANCE_MS, SESSION_MS, "consumer",
                (("cooperative-sticky", self.subscription()),), True, True,
            )  # fmt: skip
            self.token = self.world.call(lambda machine, token, now: machine.join(token, request, now))
        elif self.state == "joined":
            sync = Sync(
                GROUP,
                self.generation,
                self.member,
                None,
                "consumer",
                "cooperative-sticky",
                self.assignments(),
            )
            self.token = self.world.call(lambda machine, token, now: machine.sync(token, sync, now))
        elif self.state == "stable":
            code = self.world.machine.heartbeat(GROUP, self.generation, self.member, None, self.world.now)
            if code in GONE:
                self.reset()
            elif code:
                self.state = "out"
        self.receive()

    def assignments(self) -> dict[str, bytes]:
        """The leader's."""
        if not self.members:
            return {}
        found = self.world.topics.topic("t")
        numbers = range(found.partitions if found is not None else 0)
        has = {}
        for member in self.members:
            fields = decode_data("ConsumerProtocolSubscription", 1, member.metadata[2:])
            has[member.id] = {n for item in fields["owned_partitions"] for n in item["partitions"]}
        ids = [member.id for member in self.members]
        result = {}
        for index, one in enumerate(ids):
            mine = [
                n
                for n in numbers
                if n % len(ids) == index and not any(n in has[other] for other in ids if other != one)
            ]
            items = [{"topic": "t", "partitions": mine}] if mine else []
            result[one] = b"\0\1" + encode_data(
                "ConsumerProtocolAssignment", 1, {"assigned_partitions": items, "user_data": None}
            )
        return result

    def receive(self) -> None:
        """Takes the response, if it is there."""
        if self.token is None or self.token not in self.world.answers:
            return
        result = self.world.answers.pop(self.token)
        self.token = None
        if isinstance(result, JoinResult):
            if result.error == MemberIdRequired.code:
                self.member = result.member
            elif result.error in GONE:
                self.reset()
            elif not result.error:
                self.member, self.generation, self.state = result.member, result.generation, "joined"
                self.members = result.members
        elif isinstance(result, SyncResult):
            if result.error in GONE:
                self.reset()
            elif result.error:
                self.state = "out"
            else:
                before, self.owned = self.owned, self.decoded(result.assignment)
                self.state = "out" if self.cooperative and before - self.owned else "stable"

    def decoded(self, data: bytes) -> Partitions:
        if not data:
            return frozenset()
        fields = decode_data("ConsumerProtocolAssignment", 1, data[2:])
        topics = {item["topic"]: item["partitions"] for item in fields["assigned_partitions"]}
        return frozenset(
            (found.id, number)
            for name, numbers in topics.items()
            if (found := self.world.topics.topic(name)) is not None
            for number in numbers
        )

    def leave(self) -> None:
        """Leaves, if it is a member."""
        if self.member and self.token is None:
            leaving = [Leaving(self.member)]
            _, actions = self.world.machine.leave(GROUP, leaving, self.world.now)
            self.world.take(actions)
        self.token = None
        self.reset()


class GroupLife(RuleBasedStateMachine):
    """Clients of both protocols, topics that change, writes that fail or wait, coordinators that move."""

    @initialize(partitions=st.integers(1, 6))
    def begin(self, partitions: int) -> None:
        self.world = World(Topics(t=partitions))
        self.clients = [Client(self.world, f"c{n}", "i" if n == 3 else None) for n in range(4)]
        self.classics = [ClassicClient(self.world, f"k{n}", n == 0) for n in range(2)]

    # ---- clients ----

    @rule(which=st.integers(0, 3))
    def beat(self, which: int) -> None:
        self.clients[which].send()

    @rule(which=st.integers(0, 3))
    def apply(self, which: int) -> None:
        self.clients[which].apply()

    @rule(which=st.integers(0, 3))
    def lose_a_response(self, which: int) -> None:
        self.clients[which].receive(lost=True)

    @rule(which=st.integers(0, 3), topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def subscribe(self, which: int, topics: set[str]) -> None:
        self.clients[which].subscribed, self.clients[which].full = frozenset(topics), True

    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        self.clients[which].leave(-1)

    @rule()
    def leave_for_a_while(self) -> None:
        self.clients[3].leave(-2)

    @rule(which=st.integers(0, 3))
    def die(self, which: int) -> None:
        self.clients[which].reset_for(lambda: None)

    @rule(which=st.integers(0, 1), leaves=st.booleans())
    def classic(self, which: int, leaves: bool) -> None:
        if leaves:
            self.classics[which].leave()
        else:
            self.classics[which].step()

    @rule()
    def classics_settle(self) -> None:
        """The classic members get through a rebalance."""
        for _ in range(8):
            for classic in self.classics:
                classic.step()
            self.settle()
            self.world.wait(1)

    @rule(first=st.integers(0, 3), count=st.integers(1, 4))
    def members_settle(self, first: int, count: int) -> None:
        """Some members get through a rebalance."""
        for _ in range(3):
            for client in self.clients[first : first + count]:
                client.send()
                self.settle()
                client.apply()

    @rule()
    def consumers_leave(self) -> None:
        self.settle()
        for client in self.clients:
            client.leave(-1)
            self.settle()

    # ---- topics, time, coordinators ----

    @rule(name=st.sampled_from(TOPICS), what=st.sampled_from(["grow", "delete", "create"]))
    def change_topic(self, name: str, what: str) -> None:
        topics = self.world.topics
        found = topics.topic(name)
        if what == "create":
            topics.create(name, 2)
        elif found is not None and what == "grow" and found.partitions < 9:
            topics.grow(name, found.partitions + 1)
        elif found is not None and what == "delete":
            topics.delete(name)

    @rule(by_ms=st.sampled_from([100, 15_000, SESSION_MS, REBALANCE_MS]))
    def wait(self, by_ms: int) -> None:
        self.settle()
        self.world.wait(by_ms)

    @rule(error=st.sampled_from([0, 0, 0, RequestTimedOut.code]))
    def settle(self, error: int = 0) -> None:
        self.world.settle(error)
        for client in self.clients:
            client.receive()
        for classic in self.classics:
            classic.receive()

    @rule(which=st.integers(0, 3))
    def refused_write(self, which: int) -> None:
        """Whatever a heartbeat changed is undone."""
        before = self.entries(self.world.machine.consumer.get(GROUP))
        classic = self.world.machine.classic.snapshot(GROUP)
        self.world.refusal = NotEnoughReplicas.code
        self.clients[which].send()
        self.world.refusal = 0
        assert self.entries(self.world.machine.consumer.get(GROUP)) == before
        after = self.world.machine.classic.snapshot(GROUP)
        assert (classic is None) == (after is None)
        if classic is not None and after is not None:
            assert {member.id for member in classic.members} == {member.id for member in after.members}

    @rule(written=st.booleans())
    def move_the_coordinator(self, written: bool) -> None:
        """Another broker loads the log; clients that waited ask again."""
        if written:
            self.world.settle()
        del self.world.log[self.world.replicated :]
        self.world.writes.clear()
        self.world.machine.unload()
        assert self.world.machine.memory.bytes == 0
        self.world.machine = self.world.restarted()
        for client in self.clients:
            client.receive(lost=True)
        for classic in self.classics:
            classic.token = None
            if classic.state == "joined":
                classic.state = "out"

    # ---- what holds ----

    @staticmethod
    def entries(group: ConsumerGroup | None) -> dict[Kind, dict[str, Any]]:
        return {} if group is None else {kind: dict(table) for kind, table in group.entries.items() if table}

    @invariant()
    def one_owner_of_each_partition(self) -> None:
        if not hasattr(self, "world"):
            return
        group = self.world.machine.consumer.get(GROUP)
        if group is None:
            return
        owners: dict[tuple[TopicId, int], str] = {}
        readers = [(client.member, client.owned) for client in self.clients if client.epoch]
        readers += [(classic.member, classic.owned) for classic in self.classics if classic.member]
        for member, owned in readers:
            if member in group.members:
                for partition in owned:
                    assert partition not in owners, f"{owners[partition]} and {member} read {partition}"
                    owners[partition] = member

    @invariant()
    def entries_fit_together(self) -> None:
        if not hasattr(self, "world"):
            return
        group = self.world.machine.consumer.get(GROUP)
        if group is None:
            return
        owners = {
            partition: member
            for member, current in group.entries[Kind.CURRENT].items()
            for partition in [*flat(current.assigned), *flat(current.revoking)]
        }
        assert owners == {(t, n): member for t, found in group.owners.items() for n, member in found.items()}
        assert group.members.keys() >= group.entries[Kind.CURRENT].keys()
        assert group.members.keys() >= group.entries[Kind.TARGET].keys()
        targets = [flat(group.target(member)) for member in group.members]
        assert len(frozenset().union(*targets)) == sum(map(len, targets)), "a target has one owner"
        assert group.memory_bytes == sum(_bytes_of(*change) for change in group.changes())
        assert {member for _, member in group.deadlines} == group.members.keys()

    @invariant()
    def the_log_has_the_state(self) -> None:
        if not hasattr(self, "world") or self.world.writes:
            return
        here = self.entries(self.world.machine.consumer.get(GROUP))
        log = self.world.log
        compacted = dict(log[: len(log) // 2])
        for loaded in (log, [*compacted.items(), *log[len(log) // 2 :]], list(dict(log).items())):
            machine = self.world.new_machine()
            machine.load([Entry(key, value) for key, value in loaded])
            machine.loaded(self.world.now)
            assert self.entries(machine.consumer.get(GROUP)) == here

    def teardown(self) -> None:
        """The members that are left settle: each partition that one of them reads has an owner."""
        if not hasattr(self, "world"):
            return
        self.settle()
        for client in self.clients[:3]:
            client.token = None
            client.full = True
        self.world.wait(SESSION_MS + REBALANCE_MS)
        for classic in self.classics:
            classic.leave()
        self.world.settle()
        for _ in range(12):
            for client in self.clients[:3]:
                client.send()
                self.world.settle()
                client.receive()
                client.apply()
            self.world.wait(1_000)
        group = self.world.machine.consumer.get(GROUP)
        assert group is not None
        assert group.state == "Stable", f"{group}"
        owned = [client.owned for client in self.clients[:3]]
        wanted = {
            (found.id, number)
            for name in frozenset().union(*(client.subscribed for client in self.clients[:3]))
            if (found := self.world.topics.topic(name)) is not None
            for number in range(found.partitions)
        }
        assert frozenset().union(*owned) == wanted
        assert sum(map(len, owned)) == len(wanted)
        holder = self.world.machine.table.groups.get(GROUP)
        assert holder is None or holder.state is GroupState.EMPTY


TestGroupLife = GroupLife.TestCase
TestGroupLife.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
