"""A consumer group's state: members, votes, generation, offsets. Source:
kafka.coordinator.group.GroupMetadata.

Owns the data and what can be said of it without looking elsewhere; the rules of who may do what when are in
`machine.py`. Pure. `join_token` and `sync_token` stand for a client that waits for its answer.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...; any -> Dead
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from cluster.groups._timers import Timers
from cluster.model import TopicPartition

CONSUMER_PROTOCOL = "consumer"

Token = int
"""Stands for a request that waits for its answer; the driver knows which."""

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors a member can run, most preferred first, with its subscription for each."""


class GroupState(Enum):
    """The states, with the names DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_PREVIOUS = {
    GroupState.EMPTY: (GroupState.PREPARING,),
    GroupState.PREPARING: (GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING),
    GroupState.COMPLETING: (GroupState.PREPARING,),
    GroupState.STABLE: (GroupState.COMPLETING,),
    GroupState.DEAD: tuple(GroupState),
}


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset a group committed. `expire_ms` is None unless an old client asked for a retention."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int | None = None


_MEMBER_BYTES = 1024
"""Measured: what a member takes beside its names and data, its deadlines included."""

_GROUP_BYTES = 2048
"""Measured: what a group takes beside its name and its offsets, with nobody in it any more."""

_PROTOCOL_BYTES = 192
"""Measured: what an assignor takes beside its name and data, its place in the counts included."""


@dataclass(slots=True)
class Held:
    """What members, ids given out and groups without offsets take of memory: of all groups that share this. Its owner
    reads it; groups change it.
    """

    bytes: int = 0


def text_bytes(text: str) -> int:
    """The most that a text takes: outside ASCII four bytes a character, and as much again for its UTF-8, which Python
    keeps.
    """
    return len(text) if text.isascii() else 8 * len(text)


def protocols_bytes(protocols: Protocols) -> int:
    """What a member's assignors and its subscriptions for them take."""
    return sum(_PROTOCOL_BYTES + text_bytes(name) + len(data) for name, data in protocols)


def ids_bytes(*ids: str | None) -> int:
    """What a member takes that has these ids and nothing else."""
    return _MEMBER_BYTES + sum(text_bytes(text) for text in ids if text is not None)


def group_bytes(group_id: str) -> int:
    """What a group takes that has nobody in it."""
    return _GROUP_BYTES + text_bytes(group_id)


_Table = TypeVar("_Table", bound=dict[str, Any])

_ENTRY_BYTES = 256
"""More than a dict has for an entry, unless it had many more of them."""


def _fitted(table: _Table) -> _Table:
    """The same table, or its copy if it is much larger than what is left in it: Python's never shrink."""
    most = _ENTRY_BYTES * (len(table) + 1)
    return table if sys.getsizeof(table) <= most else type(table)(table)


@dataclass(slots=True)
class Member:
    """A member. `deadline` is when it is thrown out unless it is heard of; None while it waits in a
    rebalance.
    """

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    join_token: Token | None = field(default=None, init=False)
    """Set and taken by the group, which counts them."""
    sync_token: Token | None = None
    is_new: bool = False
    deadline: int | None = None

    def metadata(self, protocol: str) -> bytes:
        """The subscription for that assignor; KeyError when the member cannot run it."""
        for name, data in self.protocols:
            if name == protocol:
                return data
        raise KeyError(protocol)

    @property
    def held_bytes(self) -> int:
        """What the member takes of memory."""
        ids = ids_bytes(self.id, self.instance_id, self.client_id)
        return ids + protocols_bytes(self.protocols) + len(self.assignment)

    def vote(self, candidates: Set[str]) -> str:
        """The first of the member's assignors that everybody can run."""
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def waits(self) -> bool:
        """Whether the broker, not the member, is the one to answer next; then silence is no failure."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)


@dataclass(slots=True)
class Group:
    """A group. Members keep the order they joined in; the first of them leads."""

    id: str
    held: Held = field(default_factory=Held)
    """Shared with the other groups. Only the methods here change what is counted in it."""
    timers: Timers = field(default_factory=Timers)
    """Shared with the other groups. The methods here cancel what is due of whom they remove."""
    state: GroupState = GroupState.EMPTY
    state_since_ms: int | None = None
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: OrderedDict[str, Member] = field(default_factory=OrderedDict)
    """The first of a dict is looked for behind all that were first before it; that of an OrderedDict is known."""
    awaiting_join: int = field(default=0, init=False)
    """How many members wait for the join phase to end, so that nobody who comes or goes looks at all others."""
    static: dict[str, str] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    """Ids given out whose owner has not joined yet, and when they lapse."""
    pending_sync: set[str] = field(default_factory=set)
    supported: Counter[str] = field(default_factory=Counter)
    """How many members can run each assignor, so that a join need not look at what all others brought."""
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    uncommitted: Counter[TopicPartition] = field(default_factory=Counter)
    """Commits on their way to the log."""
    join_deadline: int | None = None
    initial_remaining_ms: int | None = None
    """While the first members gather: how much longer that may take at most; None in any later rebalance."""
    initial_delay_ms: int = 0
    new_member_added: bool = False
    sync_deadline: int | None = None
    _own_bytes: int = field(default=0, init=False)
    """What is counted of the group beside its members."""

    def __post_init__(self) -> None:
        self._weigh()

    def become(self, state: GroupState, now: int) -> None:
        """Changes the state; it is a mistake of the program to go a way there is none."""
        assert self.state in _PREVIOUS[state], f"group {self.id} cannot go from {self.state} to {state}"
        self.state = state
        self.state_since_ms = now

    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin now."""
        return self.state in _PREVIOUS[GroupState.PREPARING]

    def add(self, member: Member) -> None:
        """Adds a member that joined."""
        if member.instance_id is not None:
            assert member.instance_id not in self.static
            self.static[member.instance_id] = member.id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self._count(member.protocols)
        self.held.bytes += member.held_bytes
        self._drop_pending(member.id)

    def remove(self, member_id: str) -> Member | None:
        """Removes a member, or an id given out; the next in line leads if it led. A join that it waits in is taken."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.take_join(member)
            self.members = _fitted(self.members)
            self._discount(member.protocols)
            self.held.bytes -= member.held_bytes
            self._forget_session(member_id)
            if member.instance_id is not None:
                self.static.pop(member.instance_id, None)
                self.static = _fitted(self.static)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._drop_pending(member_id)
        self.pending_sync.discard(member_id)
        return member

    def end(self) -> None:
        """Removes all members and ids given out, the one that leads last; the group is dead, and nothing is due of it."""
        for member_id in reversed([*self.members, *self.pending]):
            self.remove(member_id)
        self.state = GroupState.DEAD
        self._forget_rebalance()
        self._weigh()

    def await_join(self, member: Member, token: Token) -> None:
        """A member of the group waits for the join phase to end."""
        assert member.join_token is None
        member.join_token = token
        self.awaiting_join += 1

    def take_join(self, member: Member) -> Token | None:
        """The member does not wait for the join phase to end any more; the request to answer, if it did."""
        token, member.join_token = member.join_token, None
        self.awaiting_join -= token is not None
        return token

    def await_member(self, member_id: str, deadline: int) -> None:
        """An id was given out, whose owner is to join until then."""
        assert member_id not in self.pending
        self.pending[member_id] = deadline
        self.timers.schedule((self.id, "pending", member_id), deadline)
        self.held.bytes += ids_bytes(member_id)

    def _drop_pending(self, member_id: str) -> None:
        if self.pending.pop(member_id, None) is not None:
            self.pending = _fitted(self.pending)
            self.timers.cancel((self.id, "pending", member_id))
            self.held.bytes -= ids_bytes(member_id)

    def _forget_session(self, member_id: str) -> None:
        self.timers.cancel((self.id, "session", member_id))

    def find(self, member_id: str, instance_id: str | None) -> Member | None:
        """The member that has the id, or none yet and the static identity."""
        if not member_id and instance_id is not None:
            member_id = self.static.get(instance_id, "")
        return self.members.get(member_id)

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """The member of a static identity continues under a new id, whose session is to begin."""
        member = self.members.pop(old_id)
        self._forget_session(old_id)
        member.deadline = None
        member.id = new_id
        self.held.bytes += text_bytes(new_id) - text_bytes(old_id)
        self.members[new_id] = member
        self.static[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.discard(old_id)
            self.pending_sync.add(new_id)
        return member

    def bring(self, member: Member, protocols: Protocols) -> None:
        """A member can run other assignors, or subscribes to something else, from now on."""
        self._discount(member.protocols)
        self.held.bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        self._count(protocols)

    def assign(self, member: Member, assignment: bytes) -> None:
        """What the leader decided for a member."""
        self.held.bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _count(self, protocols: Protocols) -> None:
        self.supported.update(dict(protocols).keys())

    def _discount(self, protocols: Protocols) -> None:
        for name in dict(protocols):
            self.supported[name] -= 1
            if not self.supported[name]:
                del self.supported[name]
        self.supported = _fitted(self.supported)

    def candidates(self) -> set[str]:
        """The assignors every member can run."""
        return {name for name, count in self.supported.items() if count == len(self.members)}

    def elect_protocol(self) -> str:
        """The assignor with the most votes."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these assignors may join. One that is the first to do so may, as with Kafka, though the
        group is not empty yet or not any more.
        """
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        members = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supported[name] == members for name, _ in protocols
        )

    def rebalance_timeout_ms(self) -> int:
        """The longest of the members' rebalance timeouts."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def all_joined(self) -> bool:
        """Whether every member, and everybody who was given an id, has joined."""
        return not self.pending and self.awaiting_join == len(self.members)

    def elect_leader(self) -> bool:
        """Makes a member lead that did join; False when there is none."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_token is None:
            chosen = next((m.id for m in self.members.values() if m.join_token is not None), None)
            if chosen is None:
                return False
            self.leader = chosen
        return True

    def next_generation(self, now: int) -> None:
        """The join phase is over: a new generation, of the members there are."""
        self.generation += 1
        self.protocol = self.elect_protocol() if self.members else None
        self.become(GroupState.COMPLETING if self.members else GroupState.EMPTY, now)
        if not self.members:
            self._forget_rebalance()
        self.pending_sync.clear()

    def _forget_rebalance(self) -> None:
        self.join_deadline = self.sync_deadline = None
        self.timers.cancel((self.id, "join", ""))
        self.timers.cancel((self.id, "sync", ""))

    def postpone(self, by_ms: int) -> None:
        """Moves the deadlines of the group and of its members, as far as they have one."""
        self.pending = {member_id: deadline + by_ms for member_id, deadline in self.pending.items()}
        for member in self.members.values():
            if member.deadline is not None:
                member.deadline += by_ms
        if self.join_deadline is not None:
            self.join_deadline += by_ms
        if self.sync_deadline is not None:
            self.sync_deadline += by_ms

    def has_offsets(self) -> bool:
        """Whether anything is committed or about to be."""
        return bool(self.offsets) or bool(self.uncommitted)

    @property
    def unused(self) -> bool:
        """Whether nobody is in the group, has an id or commits, and nothing of it was ever stored."""
        nobody = self.state is GroupState.EMPTY and not self.pending
        return nobody and self.generation == 0 and not self.has_offsets()

    # ---- offsets ----

    def begin_commit(self, items: Set[TopicPartition]) -> None:
        """Offsets of these are on their way to the log."""
        self.uncommitted.update(items)
        self._weigh()

    def end_commit(self, items: Set[TopicPartition]) -> None:
        """They are there, or will never be."""
        self.uncommitted.subtract(items)
        self.uncommitted = +self.uncommitted
        self._weigh()

    def keep(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """These are committed."""
        self.offsets.update(offsets)
        self._weigh()

    def forget(self, items: Iterable[TopicPartition]) -> None:
        """Nothing is committed for these."""
        for item in items:
            self.offsets.pop(item, None)
        self._weigh()

    def _weigh(self) -> None:
        """Counts the group itself while it is without offsets; how many have offsets is for their retention to bound."""
        uncounted = self.state is GroupState.DEAD or self.has_offsets()
        own = 0 if uncounted else group_bytes(self.id)
        self.held.bytes += own - self._own_bytes
        self._own_bytes = own
