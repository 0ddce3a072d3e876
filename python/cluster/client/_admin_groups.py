"""`AdminClient`'s operations on groups and their offsets, one function each.

They run in the calling thread.
"""

from __future__ import annotations

from typing import Any

from ._admin_types import ConsumerGroupTopicPartitions, GroupMember, GroupMetadata
from ._commits import commit_without_members
from ._coordinator import Coordinator
from ._errors import KafkaException
from ._offsets import Offsets
from ._requests import Requests
from ._types import OFFSET_INVALID, BrokerMetadata, TopicPartition, error_of


def list_groups(requests: Requests, group: str | None, timeout: float) -> list[GroupMetadata]:
    """The groups of all brokers, described, or the one named `group`."""
    found: list[GroupMetadata] = []
    brokers = requests.network.metadata([], timeout=timeout)["brokers"]
    for node, (host, port) in brokers.items():
        listed = requests.send_until("ListGroups", {}, broker=node, timeout=timeout)
        if error := error_of(listed["error_code"]):
            raise KafkaException(error)
        names = [one["group_id"] for one in listed["groups"] if group in (None, one["group_id"])]
        if names:
            answer = requests.send_until("DescribeGroups", {"groups": names}, broker=node, timeout=timeout)
            broker = BrokerMetadata(node, host, port)
            found += [_described(broker, one) for one in answer["groups"]]
    return found


def _described(broker: BrokerMetadata, group: dict[str, Any]) -> GroupMetadata:
    members = [
        GroupMember(
            member["member_id"],
            member["client_id"],
            member["client_host"],
            member["member_metadata"],
            member["member_assignment"],
        )
        for member in group["members"]
    ]
    return GroupMetadata(
        broker,
        group["group_id"],
        error_of(group["error_code"]),
        group["group_state"],
        group["protocol_type"],
        group["protocol_data"],
        members,
    )


def list_offsets_of_group(
    requests: Requests, asked: ConsumerGroupTopicPartitions, require_stable: bool, timeout: float
) -> ConsumerGroupTopicPartitions:
    """The group's committed offsets, for these partitions or for all."""
    offsets = Offsets(Coordinator(requests, asked.group_id), require_stable=require_stable)
    found = offsets.committed(asked.topic_partitions, timeout)
    return ConsumerGroupTopicPartitions(asked.group_id, found)


def alter_offsets_of_group(
    requests: Requests, wanted: ConsumerGroupTopicPartitions, timeout: float
) -> ConsumerGroupTopicPartitions:
    """Commits offsets for a group that has no members; each partition's error is in the result."""
    coordinator = Coordinator(requests, wanted.group_id)
    found = commit_without_members(coordinator, wanted.topic_partitions or [], timeout)
    return ConsumerGroupTopicPartitions(wanted.group_id, found)


def check_group_request(
    request: list[ConsumerGroupTopicPartitions], committing: bool
) -> ConsumerGroupTopicPartitions:
    """The one group of a request. Raises TypeError or ValueError for a wrong request."""
    if not isinstance(request, list) or not all(
        isinstance(one, ConsumerGroupTopicPartitions) for one in request
    ):
        raise TypeError("expected a list of ConsumerGroupTopicPartitions")
    if len(request) != 1:
        raise ValueError("expected exactly one group")
    [group] = request
    if not isinstance(group.group_id, str):
        raise TypeError("group_id must be a string")
    partitions = group.topic_partitions
    if partitions is not None and not all(isinstance(one, TopicPartition) for one in partitions):
        raise TypeError("topic_partitions must be a list of TopicPartition")
    if not group.group_id or partitions == [] or (committing and not partitions):
        raise ValueError("the group's id and its list of partitions must not be empty")
    for one in partitions or []:
        if not one.topic or one.partition < 0 or (committing and one.offset < 0):
            raise ValueError(f"{one}: a topic, a partition and, to be committed, an offset are needed")
        if not committing and one.offset != OFFSET_INVALID:
            raise ValueError(f"{one}: an offset cannot be asked for")
    return group
