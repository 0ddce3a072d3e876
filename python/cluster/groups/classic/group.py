"""A classic group's state: members, protocols, generation. Source: kafka.coordinator.group.GroupMetadata.

Owns the data and the deadlines of one group. Does not know when a rebalance begins or what is answered. Pure.
`join_token` and `sync_token` are requests that wait for their response.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...; any -> Dead
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from cluster.errors import NONE, FencedInstanceId, UnknownMemberId
from cluster.groups.committed import GroupOffsets
from cluster.groups.memory import MemoryUse, group_bytes, ids_bytes, protocols_bytes, text_bytes
from cluster.groups.messages import Protocols, StoredGroup, StoredMember
from cluster.groups.timers import Timers
from cluster.state_topics import Token


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


_Table = TypeVar("_Table", bound=dict[str, Any])

_ENTRY_BYTES = 256
"""A dict with more bytes for each entry had many more entries before."""


def _shrunk(table: _Table) -> _Table:
    """The table, or a copy if it has shrunk much: Python's dicts keep their size."""
    most = _ENTRY_BYTES * (len(table) + 1)
    return table if sys.getsizeof(table) <= most else type(table)(table)


@dataclass(slots=True)
class Member:
    """A member. `deadline` is the end of its session; None while it waits in a rebalance."""

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
    """Only the group changes it, because it counts waiting members."""
    sync_token: Token | None = None
    is_new: bool = False
    deadline: int | None = None

    def metadata(self, protocol: str) -> bytes:
        """The subscription for an assignor. Raises KeyError if the member does not have it."""
        for name, data in self.protocols:
            if name == protocol:
                return data
        raise KeyError(protocol)

    @property
    def memory_bytes(self) -> int:
        """Memory of the member."""
        ids = ids_bytes(self.id, self.instance_id, self.client_id)
        return ids + protocols_bytes(self.protocols) + len(self.assignment)

    def vote(self, candidates: Set[str]) -> str:
        """The member's first assignor that all members have."""
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def is_waiting(self) -> bool:
        """The member waits for a response, so its silence does not end the session."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)


@dataclass(slots=True)
class Group:
    """A group. Members are in the order of their joins."""

    id: str
    memory: MemoryUse = field(default_factory=MemoryUse)
    """Shared by all groups. Only methods of Group change it."""
    timers: Timers = field(default_factory=Timers)
    """Shared by all groups. The methods here cancel the timers of members that they remove."""
    state: GroupState = GroupState.EMPTY
    state_since_ms: int | None = None
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: OrderedDict[str, Member] = field(default_factory=OrderedDict)
    """An OrderedDict, because finding the first entry of a dict gets slower with each first entry deleted
    before.
    """
    awaiting_join: int = field(default=0, init=False)
    """How many members wait for the join phase to end. Counted, so that a join does not iterate over all
    members.
    """
    static: dict[str, str] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    """Generated ids whose member has not joined yet, and when they expire."""
    pending_sync: set[str] = field(default_factory=set)
    supported: Counter[str] = field(default_factory=Counter)
    """How many members have each assignor. Counted, so that a join does not iterate over all members."""
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    """Only for its memory, and to keep the group while it has offsets. After a change `count` is called."""
    join_deadline: int | None = None
    initial_remaining_ms: int | None = None
    """During the initial rebalance delay: how much longer it may take at most. None in later rebalances."""
    initial_delay_ms: int = 0
    new_member_added: bool = False
    sync_deadline: int | None = None
    _own_bytes: int = field(default=0, init=False)
    """The memory counted for the group without its members."""

    def __post_init__(self) -> None:
        self.count()

    def become(self, state: GroupState, now: int) -> None:
        """Changes the state along a valid transition."""
        assert self.state in _PREVIOUS[state], f"group {self.id} cannot go from {self.state} to {state}"
        self.state = state
        self.state_since_ms = now

    def can_rebalance(self) -> bool:
        """A rebalance may begin in the current state."""
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
        self.memory.bytes += member.memory_bytes
        self._drop_pending(member.id)

    def remove(self, member_id: str) -> Member | None:
        """Removes a member or a generated id. If it was the leader, the next member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.take_join(member)
            self.members = _shrunk(self.members)
            self._discount(member.protocols)
            self.memory.bytes -= member.memory_bytes
            self._forget_session(member_id)
            if member.instance_id is not None:
                self.static.pop(member.instance_id, None)
                self.static = _shrunk(self.static)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._drop_pending(member_id)
        self.pending_sync.discard(member_id)
        return member

    def end(self) -> None:
        """Removes all members, generated ids and timers. The group's state becomes Dead."""
        for member_id in reversed([*self.members, *self.pending]):
            self.remove(member_id)
        self.state = GroupState.DEAD
        self._forget_rebalance()
        self.count()

    def reset(self) -> None:
        """As `end`, but the group stays for its offsets, as one that never had members."""
        self.end()
        self.state, self.state_since_ms = GroupState.EMPTY, None
        self.generation, self.protocol_type, self.protocol = 0, None, None
        self.initial_remaining_ms, self.new_member_added = None, False
        self.count()

    def await_join(self, member: Member, token: Token) -> None:
        """The member waits for the join phase to end."""
        assert member.join_token is None
        member.join_token = token
        self.awaiting_join += 1

    def take_join(self, member: Member) -> Token | None:
        """The member stops waiting for the join phase. Returns its waiting request, if any."""
        token, member.join_token = member.join_token, None
        self.awaiting_join -= token is not None
        return token

    def await_member(self, member_id: str, deadline: int) -> None:
        """An id was generated. Its member must join until `deadline`."""
        assert member_id not in self.pending
        self.pending[member_id] = deadline
        self.timers.schedule((self.id, "pending", member_id), deadline)
        self.memory.bytes += ids_bytes(member_id)

    def _drop_pending(self, member_id: str) -> None:
        if self.pending.pop(member_id, None) is not None:
            self.pending = _shrunk(self.pending)
            self.timers.cancel((self.id, "pending", member_id))
            self.memory.bytes -= ids_bytes(member_id)

    def renew_session(self, member: Member, now: int, timeout_ms: int | None = None) -> None:
        """Starts the member's session again, with its session timeout or `timeout_ms`."""
        member.deadline = now + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.timers.schedule((self.id, "session", member.id), member.deadline)

    def _forget_session(self, member_id: str) -> None:
        self.timers.cancel((self.id, "session", member_id))

    def check_member(self, member_id: str, instance_id: str | None) -> int:
        """The error if the member id is unknown or not the current one of its static identity, else 0."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return UnknownMemberId.code
            if current != member_id:
                return FencedInstanceId.code
        return NONE if member_id in self.members else UnknownMemberId.code

    def find(self, member_id: str, instance_id: str | None) -> Member | None:
        """The member with this id, or, without an id, with this static identity."""
        if not member_id and instance_id is not None:
            member_id = self.static.get(instance_id, "")
        return self.members.get(member_id)

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """Gives the member of a static identity a new id. The caller starts its session."""
        member = self.members.pop(old_id)
        self._forget_session(old_id)
        member.deadline = None
        member.id = new_id
        self.memory.bytes += text_bytes(new_id) - text_bytes(old_id)
        self.members[new_id] = member
        self.static[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.discard(old_id)
            self.pending_sync.add(new_id)
        return member

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        """Replaces a member's assignors and subscriptions."""
        self._discount(member.protocols)
        self.memory.bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        self._count(protocols)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Sets a member's assignment."""
        self.memory.bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _count(self, protocols: Protocols) -> None:
        self.supported.update(dict(protocols).keys())

    def _discount(self, protocols: Protocols) -> None:
        for name in dict(protocols):
            self.supported[name] -= 1
            if not self.supported[name]:
                del self.supported[name]
        self.supported = _shrunk(self.supported)

    def candidates(self) -> set[str]:
        """The assignors that every member has."""
        return {name for name, count in self.supported.items() if count == len(self.members)}

    def elect_protocol(self) -> str:
        """The assignor with the most votes."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """A member with these assignors may join. As in Kafka, the first member may always join, in any
        state.
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
        """Every member and every generated id has joined."""
        return not self.pending and self.awaiting_join == len(self.members)

    def elect_leader(self) -> bool:
        """Chooses a leader among the members that joined. Returns False if there are none."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_token is None:
            chosen = next((m.id for m in self.members.values() if m.join_token is not None), None)
            if chosen is None:
                return False
            self.leader = chosen
        return True

    def next_generation(self, now: int) -> None:
        """The join phase is over: begins a new generation with the current members."""
        self.generation += 1
        self.protocol = self.elect_protocol() if self.members else None
        self.become(GroupState.COMPLETING if self.members else GroupState.EMPTY, now)
        if not self.members:
            self._forget_rebalance()
        self.pending_sync.clear()

    def time_join(self, deadline: int) -> None:
        """The join phase ends at `deadline`, or before."""
        self.join_deadline = deadline
        self.timers.schedule((self.id, "join", ""), deadline)

    def time_sync(self, deadline: int) -> None:
        """Every member must sync until `deadline`."""
        self.sync_deadline = deadline
        self.timers.schedule((self.id, "sync", ""), deadline)

    def _forget_rebalance(self) -> None:
        self.join_deadline = self.sync_deadline = None
        self.timers.cancel((self.id, "join", ""))
        self.timers.cancel((self.id, "sync", ""))

    def deadline(self, kind: str, member_id: str) -> int | None:
        """When a timer is due; None if it was stopped."""
        if kind == "join":
            return self.join_deadline
        if kind == "sync":
            return self.sync_deadline
        if kind == "pending":
            return self.pending[member_id]
        return self.members[member_id].deadline

    def postpone(self, by_ms: int) -> None:
        """Moves all deadlines of the group and its members."""
        self.pending = {member_id: deadline + by_ms for member_id, deadline in self.pending.items()}
        for member in self.members.values():
            if member.deadline is not None:
                member.deadline += by_ms
        if self.join_deadline is not None:
            self.join_deadline += by_ms
        if self.sync_deadline is not None:
            self.sync_deadline += by_ms

    @property
    def unused(self) -> bool:
        """The group has no members, generated ids or offsets, and was never stored."""
        empty = self.state is GroupState.EMPTY and not self.pending
        return empty and self.generation == 0 and not self.offsets

    def record(self, assignment: Mapping[str, bytes] | None = None) -> StoredGroup:
        """The group's record, with the members' assignments or those given."""
        protocol = self.protocol or ""
        members = tuple(
            StoredMember(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(protocol),
                member.assignment if assignment is None else assignment.get(member.id, b""),
            )
            for member in self.members.values()
        )
        since = -1 if self.state_since_ms is None else self.state_since_ms
        return StoredGroup(
            self.id, self.protocol_type or "", self.generation, self.protocol, self.leader, since, members
        )

    def count(self) -> None:
        """Counts the group's own memory while it has no offsets. The retention bounds groups with offsets."""
        uncounted = self.state is GroupState.DEAD or bool(self.offsets)
        own = 0 if uncounted else group_bytes(self.id)
        self.memory.bytes += own - self._own_bytes
        self._own_bytes = own
