"""A group's next epoch and target assignment. Pure. Source: TargetAssignmentBuilder, ModernGroup,
GroupMetadataManager.
"""

from __future__ import annotations

from collections import Counter

from cluster.groups.assignors import ASSIGNORS, MemberSpec
from cluster.groups.consumer.group import ConsumerGroup, Draft, Kind
from cluster.groups.consumer.messages import ClusterTopics
from cluster.groups.consumer.values import Resolved, Topics
from cluster.model import TopicId

REGEX_REFRESH_MIN_MS = 10_000
"""A group's regular expressions are resolved again at most this often (REGEX_BATCH_REFRESH_MIN_INTERVAL_MS).
"""


def preferred_assignor(group: ConsumerGroup, default: str) -> str:
    """The assignor that most members want."""
    wanted = Counter(each.assignor for each in group.members.values() if each.assignor is not None)
    return wanted.most_common(1)[0][0] if wanted else default


def resolve(draft: Draft, regex: str, topics: ClusterTopics, now: int) -> bool:
    """Resolves a regular expression. Returns whether the group's topics may have changed. Raises
    InvalidRegularExpression.
    """
    known, found = draft.group.resolved(regex), topics.matching(regex)
    if known is not None and known.topics == found:
        return False
    draft.set(Kind.REGEX, regex, Resolved(found, now, now))
    return True


def refresh_regexes(draft: Draft, topics: ClusterTopics, now: int) -> bool:
    """Resolves the group's regular expressions again if the cluster's topics changed. Returns whether the
    group's topics may have changed.
    """
    group = draft.group
    if not group.regex_readers or group.regexes_seen == topics.version:
        return False
    if now - group.regexes_resolved_ms < REGEX_REFRESH_MIN_MS:
        return False
    group.regexes_seen, group.regexes_resolved_ms = topics.version, now
    return sum(resolve(draft, regex, topics, now) for regex in list(group.regex_readers)) > 0


def forget_regex(draft: Draft, regex: str | None) -> None:
    """Forgets the topics of a regular expression that no member reads by."""
    group = draft.group
    if regex is not None and regex not in group.regex_readers and group.resolved(regex) is not None:
        draft.set(Kind.REGEX, regex, None)


def update_topics(draft: Draft, topics: ClusterTopics) -> bool:
    """Compares the topics that the group reads with the cluster's. Returns whether they changed."""
    group = draft.group
    group.topics_seen = topics.version
    found = {name: topics.topic(name) for name in sorted(group.subscribed())}
    existing: Topics = {name: topic for name, topic in found.items() if topic is not None}
    if existing == group.topics:
        return False
    draft.set(Kind.TOPICS, "", existing)
    return True


def update_target(draft: Draft, default_assignor: str) -> None:
    """Computes the target assignment of the group's epoch."""
    group = draft.group
    ids: dict[frozenset[str], frozenset[TopicId]] = {}
    specs = {}
    for member, subscription in group.members.items():
        names = group.read_by(subscription)
        if names not in ids:
            ids[names] = frozenset(group.topics[name].id for name in names if name in group.topics)
        specs[member] = MemberSpec(subscription.instance, ids[names], group.target(member))
    assignor = ASSIGNORS[preferred_assignor(group, default_assignor)]
    partitions = {topic.id: topic.partitions for topic in group.topics.values()}
    for member, target in assignor.assign(specs, partitions).items():
        draft.update(Kind.TARGET, member, target)
    draft.set(Kind.TARGET_EPOCH, "", group.epoch)
