"""Random lives of a group, checked against its invariants.

If it failed, two members could read the same partition in one generation, a member could be sent back to an
older generation, a client could wait for ever, a restart could lose a commit that was answered, or removed
members and groups would fill the memory.
"""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from cluster.errors import NONE
from cluster.groups.classic.group import GroupState
from cluster.groups.committed import CommittedOffset
from cluster.groups.memory import group_bytes, ids_bytes
from cluster.groups.messages import (
    Action,
    Commit,
    CommitResult,
    GroupLimits,
    Join,
    JoinResult,
    Leaving,
    StoredGroup,
    StoredMember,
    Sync,
    SyncResult,
    Write,
)
from cluster.groups.partition import PartitionGroups
from cluster.model import TopicPartition
from cluster.state_topics import Respond
from tests.groups.logs import expire_all

PARTITIONS = [f"p{number}" for number in range(4)]
SESSION_MS = 10_000
REBALANCE_MS = 20_000


def check_what_is_kept(machine: PartitionGroups) -> None:
    """Counts and sums equal those computed from the groups. Nothing is kept of removed members and groups."""
    held = 0
    known = set()
    for group in machine.table.groups.values():
        names = (name for member in group.members.values() for name in dict(member.protocols))
        assert group.supported == Counter(names)
        assert group.awaiting_join == sum(member.join_token is not None for member in group.members.values())
        held += sum(member.memory_bytes for member in group.members.values())
        held += sum(ids_bytes(member_id) for member_id in group.pending)
        if not group.offsets:
            held += group_bytes(group.id)
            stored = group.generation > 0
            assert stored or group.pending or group.state is not GroupState.EMPTY, "the group is not used"
        known |= {(group.id, "session", member_id) for member_id in group.members}
        known |= {(group.id, "pending", member_id) for member_id in group.pending}
        if group.state is not GroupState.EMPTY:
            known |= {(group.id, "join", ""), (group.id, "sync", "")}
    assert machine.memory.bytes == held
    assert machine.table.timers._queued.keys() <= known
    assert sorted(machine.table.timers._numbered.values()) == sorted(machine.table.timers._queued)


class GroupLife(RuleBasedStateMachine):
    """Clients that join, sync, commit, fall silent and come back, and writes that succeed, fail, or take
    time.
    """

    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.ids = itertools.count(1)
        self.tokens = itertools.count(1)
        self.machine = PartitionGroups(GroupLimits(initial_delay_ms=500), lambda: str(next(self.ids)))
        self.now = 1_000
        self.writes: list[Write] = []
        self.waiting: dict[int, str] = {}
        self.generation_seen = 0
        self.joined: dict[str, JoinResult] = {}
        self.assigned: dict[int, dict[str, str]] = {}
        self.answered_commits: dict[TopicPartition, int] = {}
        self.commits: dict[int, int] = {}

    # ---- actions of the machine ----

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Write):
                self.writes.append(action)
            else:
                self.answer(action)

    def answer(self, action: Respond) -> None:
        who = self.waiting.pop(action.token)
        result = action.result
        if isinstance(result, JoinResult) and result.error == NONE:
            assert result.generation >= self.generation_seen
            self.generation_seen = result.generation
            self.joined[result.member] = result
        elif isinstance(result, SyncResult) and result.error == NONE:
            generation, _, member = who.partition(" ")
            self.check_assignment(int(generation), member, result.assignment.decode())
        elif isinstance(result, CommitResult) and result.error == NONE:
            self.answered_commits[TopicPartition("t", 0)] = self.commits[action.token]

    def check_assignment(self, generation: int, member: str, assignment: str) -> None:
        given = self.assigned.setdefault(generation, {})
        assert given.get(member, assignment) == assignment
        given[member] = assignment
        everything = [part for text in given.values() for part in text.split("+") if part]
        assert len(everything) == len(set(everything)), (
            f"a partition has two owners in generation {generation}"
        )

    # ---- events ----

    def token(self, who: str) -> int:
        token = next(self.tokens)
        self.waiting[token] = who
        return token

    def join_as(
        self, member: str, instance: str | None, protocols: tuple[str, ...], known_id_required: bool = False
    ) -> None:
        request = Join(
            "g",
            member,
            instance,
            "client",
            "/host",
            REBALANCE_MS,
            SESSION_MS,
            "consumer",
            tuple((name, b"t") for name in protocols),
            known_id_required,
        )
        self.take(self.machine.join(self.token(member), request, self.now))

    @rule(
        target=members,
        instance=st.sampled_from([None, None, "i", "j"]),
        protocols=st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range")]),
    )
    def new_member(self, instance: str | None, protocols: tuple[str, ...]) -> object:
        before = set(self.known())
        self.join_as("", instance, protocols)
        fresh = [member for member in self.known() if member not in before]
        return multiple(*((member, instance, protocols) for member in fresh))

    @rule(target=members, comes=st.booleans())
    def new_member_by_an_id(self, comes: bool) -> object:
        self.join_as("", None, ("range",), known_id_required=True)
        given = list(self.machine.table.groups["g"].pending)[-1:]
        if not comes or not given:
            return multiple()
        self.join_as(given[0], None, ("range",))
        return multiple((given[0], None, ("range",)))

    def known(self) -> list[str]:
        group = self.machine.table.groups.get("g")
        return [] if group is None else list(group.members)

    @rule(member=members)
    def join_again(self, member: tuple[str, str | None, tuple[str, ...]]) -> None:
        self.join_as(*member)

    @rule(member=members)
    def sync(self, member: tuple[str, str | None, tuple[str, ...]]) -> None:
        result = self.joined.get(member[0])
        if result is None:
            return
        decision: dict[str, bytes] = {}
        if result.leader == member[0] and result.members:
            names = [item.id for item in result.members]
            for index, part in enumerate(PARTITIONS):
                owner = names[index % len(names)]
                decision[owner] = b"+".join(filter(None, [decision.get(owner, b""), part.encode()]))
        request = Sync("g", result.generation, member[0], member[1], assignments=decision)
        self.take(self.machine.sync(self.token(f"{result.generation} {member[0]}"), request, self.now))

    @rule(member=members)
    def heartbeat(self, member: tuple[str, str | None, tuple[str, ...]]) -> None:
        result = self.joined.get(member[0])
        if result is not None:
            self.machine.heartbeat("g", result.generation, member[0], member[1], self.now)

    @rule(member=consumes(members))
    def leave(self, member: tuple[str, str | None, tuple[str, ...]]) -> None:
        _, actions = self.machine.leave("g", [Leaving(member[0], member[1])], self.now)
        self.take(actions)

    @rule(member=members, offset=st.integers(0, 1000))
    def commit(self, member: tuple[str, str | None, tuple[str, ...]], offset: int) -> None:
        result = self.joined.get(member[0])
        if result is None:
            return
        token = self.token(member[0])
        self.commits[token] = offset
        kept = CommittedOffset(offset, commit_ms=self.now)
        request = Commit("g", result.generation, member[0], member[1], {TopicPartition("t", 0): kept})
        self.take(self.machine.commit(token, request, self.now))

    @rule(milliseconds=st.sampled_from([1, 400, 3_000, 9_999, 20_001]))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.take(self.machine.advance(self.now))

    @rule(error=st.sampled_from([0, 0, 0, 15]))
    def write_ends(self, error: int) -> None:
        if self.writes:
            write = self.writes.pop(0)
            self.take(self.machine.stored(write.id, error, self.now))

    # ---- invariants ----

    @invariant()
    def generation_never_goes_back(self) -> None:
        group = self.machine.table.groups.get("g")
        if group is not None:
            assert group.generation >= self.generation_seen

    @invariant()
    def members_are_consistent(self) -> None:
        group = self.machine.table.groups.get("g")
        if group is None:
            return
        assert set(group.static.values()) <= set(group.members)
        assert (group.leader is None) == (not group.members)
        assert group.leader is None or group.leader in group.members
        if group.state is GroupState.EMPTY:
            assert not group.members
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            assert group.protocol in group.candidates()

    @invariant()
    def counts_and_sums_are_those_counted_anew(self) -> None:
        check_what_is_kept(self.machine)

    @invariant()
    def nobody_waits_without_a_deadline(self) -> None:
        group = self.machine.table.groups.get("g")
        if group is None or not self.waiting:
            return
        if group.state is GroupState.PREPARING:
            assert group.join_deadline is not None
        if group.state is GroupState.COMPLETING and group.pending_sync:
            assert group.sync_deadline is not None
        assert self.machine.next_deadline() is not None

    @invariant()
    def answered_commits_are_kept(self) -> None:
        committed = self.machine.committed("g")
        for item, offset in self.answered_commits.items():
            assert committed[item].offset == offset

    def teardown(self) -> None:
        """In the end, when all writes succeed and time passes, no request is left waiting."""
        for _ in range(4):
            while self.writes:
                self.take(self.machine.stored(self.writes.pop(0).id, NONE, self.now))
            self.now += 10 * 60_000
            self.take(self.machine.advance(self.now))
        assert not self.waiting
        group = self.machine.table.groups.get("g")
        assert group is None or group.state is GroupState.EMPTY


GroupLife.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestGroupLife = GroupLife.TestCase


GROUPS = st.sampled_from(["a", "b"])
ITEMS = [TopicPartition(topic, 0) for topic in "tu"]
STORED = StoredMember("stored", "i", "client", "/host", REBALANCE_MS, SESSION_MS, b"t", b"p")


class ManyGroups(RuleBasedStateMachine):
    """Groups that come and go in every way. Results are not checked."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = itertools.count(1)
        limits = GroupLimits(initial_delay_ms=500, members_max=3, offsets_retention_ms=30_000)
        self.machine = PartitionGroups(limits, lambda: str(next(self.ids)))
        self.now = 1_000
        self.writes: list[Write] = []
        self.seen: list[str] = ["stored", "stranger"]

    def take(self, actions: list[Action]) -> None:
        self.writes += [action for action in actions if isinstance(action, Write)]
        for group in self.machine.table.groups.values():
            self.seen += [name for name in (*group.members, *group.pending) if name not in self.seen]

    def a_member(self, number: int) -> str:
        return self.seen[-1 - number % len(self.seen)]

    @initialize(
        records=st.lists(
            st.tuples(GROUPS, st.sampled_from(["group", "members", "no group", "offset", "no offset"])),
            max_size=6,
        )
    )
    def read_the_log(self, records: list[tuple[str, str]]) -> None:
        for group, kind in records:
            if kind.endswith("offset"):
                kept = None if kind.startswith("no") else CommittedOffset(1)
                self.machine.offsets.load(group, ITEMS[0], kept)
            else:
                members = (STORED,) if kind == "members" else ()
                stored = StoredGroup(
                    group, "consumer", 1, "range", members[0].id if members else None, 0, members
                )
                self.machine.classic.load(None if kind.startswith("no") else stored, group)
            check_what_is_kept(self.machine)
        self.take(self.machine.loaded(self.now))

    @rule(
        group=GROUPS,
        number=st.one_of(st.none(), st.integers(0, 5)),
        instance=st.sampled_from([None, None, "i"]),
        names=st.sampled_from([("range",), ("range", "sticky"), ("sticky",), ()]),
        session_ms=st.sampled_from([SESSION_MS, SESSION_MS, 1]),
        known_id_required=st.booleans(),
    )
    def join(
        self,
        group: str,
        number: int | None,
        instance: str | None,
        names: tuple[str, ...],
        session_ms: int,
        known_id_required: bool,
    ) -> None:
        member = "" if number is None else self.a_member(number)
        protocols = tuple((name, b"t") for name in names)
        request = Join(
            group,
            member,
            instance,
            "c",
            "/host",
            REBALANCE_MS,
            session_ms,
            "consumer",
            protocols,
            known_id_required,
        )
        self.take(self.machine.join(0, request, self.now))

    @rule(group=GROUPS, size=st.integers(0, 10))
    def sync(self, group: str, size: int) -> None:
        found = self.machine.table.groups.get(group)
        for member_id in [] if found is None else list(found.members):
            request = Sync(
                group,
                self.machine.table.groups[group].generation,
                member_id,
                assignments={member_id: bytes(size)},
            )
            self.take(self.machine.sync(0, request, self.now))

    @rule(
        group=GROUPS,
        numbers=st.lists(st.integers(0, 5), max_size=3),
        instance=st.sampled_from([None, None, "i"]),
    )
    def leave(self, group: str, numbers: list[int], instance: str | None) -> None:
        leaving = [Leaving(self.a_member(number), instance) for number in numbers]
        self.take(self.machine.leave(group, leaving, self.now)[1])

    @rule(group=GROUPS, items=st.lists(st.sampled_from(ITEMS), unique=True), large=st.booleans())
    def commit(self, group: str, items: list[TopicPartition], large: bool) -> None:
        kept = CommittedOffset(1, metadata="m" * (5_000 if large else 5), commit_ms=self.now)
        request = Commit(group, -1, "", None, dict.fromkeys(items, kept))
        self.take(self.machine.commit(0, request, self.now))

    @rule(error=st.sampled_from([0, 0, 15]))
    def write_ends(self, error: int) -> None:
        if self.writes:
            self.take(self.machine.stored(self.writes.pop(0).id, error, self.now))

    @rule(milliseconds=st.sampled_from([1, 600, SESSION_MS, REBALANCE_MS, 300_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.take(self.machine.advance(self.now))

    @rule()
    def stand_still(self) -> None:
        self.machine.postpone(SESSION_MS)

    @rule()
    def expire(self) -> None:
        self.take(expire_all(self.machine, self.now))

    @rule(item=st.sampled_from(ITEMS))
    def delete_topic(self, item: TopicPartition) -> None:
        self.take(self.machine.topics_deleted([item.topic]))

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        self.take(self.machine.delete(group)[1])

    @invariant()
    def nothing_is_kept_of_what_is_gone(self) -> None:
        check_what_is_kept(self.machine)

    def teardown(self) -> None:
        """In the end, when all members are silent and everything has expired, nothing is left."""
        for _ in range(4):
            while self.writes:
                self.write_ends(NONE)
            self.time_passes(10 * 60_000)
        self.expire()
        assert not self.machine.table.groups
        assert not self.machine.table.timers._queued
        assert self.machine.memory.bytes == 0


ManyGroups.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestManyGroups = ManyGroups.TestCase
