"""Members of a consumer group: joining, heartbeats, leaving. Pure: changes a group through a draft and raises
the errors that clients get. Source: GroupMetadataManager (consumerGroupHeartbeat, consumerGroupLeave).

A change of the members, of what they read or of the cluster's topics begins a new epoch of the group, which
gets a new target assignment at once. Each member moves towards it at its own heartbeats; see `reconcile.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cluster.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from cluster.groups.assignors import Assignment
from cluster.groups.consumer.assignment import (
    forget_regex,
    refresh_regexes,
    resolve,
    update_target,
    update_topics,
)
from cluster.groups.consumer.group import ConsumerGroup, Draft, Kind
from cluster.groups.consumer.messages import ClusterTopics, ConsumerLimits, Heartbeat
from cluster.groups.consumer.reconcile import Target, is_reconciled, reconcile
from cluster.groups.consumer.values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    Current,
    Subscription,
)

_KEY_TEXT_MAX = 2**15 - 1
"""A record's key has the length of a text as an int16."""

_NAMES_BYTES_MAX = 1 << 20
"""Topic names longer than this together do not fit into a record of __consumer_offsets."""


def check_request(request: Heartbeat, limits: ConsumerLimits) -> None:
    """Raises InvalidRequest or UnsupportedAssignor for a request that no group could answer."""
    if request.knows_its_id or request.epoch > JOIN_EPOCH or request.epoch == LEAVE_EPOCH:
        _refuse_blank(request.member, "MemberId can't be empty.")
    _refuse_blank(request.group, "GroupId can't be empty.")
    _refuse_blank(request.instance, "InstanceId can't be empty.")
    _refuse_blank(request.rack, "RackId can't be empty.")
    if request.epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
        if request.topics is None and request.regex is None:
            raise InvalidRequest(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif request.epoch == LEAVE_STATIC_EPOCH:
        if request.instance is None:
            raise InvalidRequest("InstanceId can't be null.")
    elif request.epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
    if request.assignor is not None and request.assignor not in limits.assignors:
        raise UnsupportedAssignor(
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: "
            f"{', '.join(limits.assignors)}."
        )
    check_key(request.group, request.member, request.regex or "")
    if request.topics is not None and sum(map(len, request.topics)) > _NAMES_BYTES_MAX:
        raise InvalidRequest("The subscribed topic names are too long for a record.")


def check_key(*texts: str) -> None:
    """Raises InvalidRequest if a text is too long for a record's key."""
    if any(len(text.encode()) > _KEY_TEXT_MAX for text in texts):
        raise InvalidRequest(f"A group id, member id or regular expression has over {_KEY_TEXT_MAX} bytes.")


def _refuse_blank(text: str | None, message: str) -> None:
    if text is not None and not text.strip():
        raise InvalidRequest(message)


def check_size(group: ConsumerGroup, member: str, members_max: int) -> None:
    """Raises GroupMaxSizeReached if the group has no place for this member."""
    if len(group.members) >= members_max and member not in group.members:
        raise GroupMaxSizeReached(
            f"The consumer group has reached its maximum capacity of {members_max} members."
        )


def check_epoch(current: Current, epoch: int, owned: Assignment | None) -> None:
    """Raises FencedMemberEpoch if a member with this epoch and these partitions is not up to date. The epoch
    before is good too, because the response with the next one may be lost.
    """
    if epoch == current.epoch:
        return
    if epoch < current.epoch and epoch == current.previous_epoch and _is_part(owned, current.assigned):
        return
    relation = "greater" if epoch > current.epoch else "smaller"
    raise FencedMemberEpoch(
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({current.epoch}). The member must abandon all its partitions and rejoin."
    )


def _is_part(part: Assignment | None, whole: Assignment) -> bool:
    return part is not None and all(
        numbers <= whole.get(topic, frozenset()) for topic, numbers in part.items()
    )


def known_member(group: ConsumerGroup, member: str, instance: str | None) -> str:
    """The member with this id. Raises UnknownMemberId, or FencedInstanceId if another member has its instance
    id.
    """
    if instance is not None:
        owner = group.static.get(instance)
        if owner is None:
            raise UnknownMemberId(f"Instance id {instance} is unknown.")
        if owner != member:
            raise FencedInstanceId(
                f"Static member {member} with instance id {instance} was fenced by member {owner}."
            )
    elif member not in group.members:
        raise UnknownMemberId(f"Member {member} is not a member of group {group.id}.")
    return member


def take_instance(draft: Draft, member: str, instance: str, released_only: bool) -> None:
    """Gives a member that joins the place of the member with its instance id, if there is one. With
    `released_only`, raises UnreleasedInstanceId if that member uses the consumer protocol and has not left.
    """
    group = draft.group
    before = group.static.get(instance)
    if before is None:
        return
    current = group.current(before)
    classic = group.members[before].classic is not None
    if released_only and not classic and current.epoch != LEAVE_STATIC_EPOCH:
        raise UnreleasedInstanceId(
            f"Static member {member} with instance id {instance} cannot join the group because the instance "
            f"id is owned by {before} member."
        )
    subscription, target = group.members[before], group.target(before)
    remove_member(draft, before)
    draft.set(Kind.SUBSCRIPTION, member, subscription)
    draft.set(Kind.TARGET, member, target)
    draft.set(Kind.CURRENT, member, replace(current, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH))


def remove_member(draft: Draft, member: str) -> None:
    """Removes a member's entries."""
    for kind in (Kind.CURRENT, Kind.TARGET, Kind.SUBSCRIPTION):
        draft.set(kind, member, None)


def subscribed(request: Heartbeat, before: Subscription) -> Subscription:
    """The member's subscription after its heartbeat. Fields that the request does not have stay."""

    def changed(sent: str | None, was: str | None) -> str | None:
        return was if sent is None else sent

    return Subscription(
        instance=changed(request.instance, before.instance),
        rack=changed(request.rack, before.rack),
        client_id=request.client_id,
        client_host=request.client_host,
        topics=before.topics if request.topics is None else request.topics,
        regex=changed(request.regex, before.regex) or None,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        assignor=changed(request.assignor, before.assignor),
    )


def subscribe(
    draft: Draft,
    member: str,
    subscription: Subscription,
    topics: ClusterTopics,
    limits: ConsumerLimits,
    now: int,
) -> None:
    """Sets a member's subscription, and begins a new epoch of the group if anything changed that matters."""
    group = draft.group
    before = group.members.get(member)
    read_before = frozenset() if before is None else group.read_by(before)
    draft.update(Kind.SUBSCRIPTION, member, subscription)
    if before is not None and before.regex != subscription.regex:
        forget_regex(draft, before.regex)
    if subscription.regex is not None and group.resolved(subscription.regex) is None:
        resolve(draft, subscription.regex, topics, now)
    changed = group.epoch == 0 or group.read_by(subscription) != read_before
    changed = refresh_regexes(draft, topics, now) or changed
    if changed or group.topics_seen != topics.version:
        changed = update_topics(draft, topics) or changed
    if changed:
        draft.set(Kind.EPOCH, "", group.epoch + 1)
    if group.epoch > group.target_epoch:
        update_target(draft, limits.assignors[0])


def move(draft: Draft, member: str, owned: Assignment | None) -> bool:
    """Moves a member one step towards its target. `owned`: the partitions that it says it has. Returns
    whether it moved.
    """
    group = draft.group
    current = group.current(member)
    if is_reconciled(current, group.target_epoch):
        return False
    target = Target(group.target_epoch, group.target(member))
    return draft.update(Kind.CURRENT, member, reconcile(current, target, group.is_owned, owned))


def remove(draft: Draft, members: Iterable[str], topics: ClusterTopics) -> None:
    """Removes members for good and begins a new epoch of the group."""
    group = draft.group
    for member in members:
        regex = group.members[member].regex
        remove_member(draft, member)
        forget_regex(draft, regex)
    update_topics(draft, topics)
    draft.set(Kind.EPOCH, "", group.epoch + 1)


def leave_for_a_while(draft: Draft, member: str) -> None:
    """A static member leaves. It keeps its partitions until its session ends or its instance comes back."""
    current = replace(draft.group.current(member), epoch=LEAVE_STATIC_EPOCH, revoking={})
    draft.set(Kind.CURRENT, member, current)
