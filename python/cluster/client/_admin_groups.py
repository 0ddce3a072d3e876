"""`AdminClient`'s operations on groups and their offsets, one function each.

They run in the calling thread.
"""

from __future__ import annotations

from typing import Any

from ._admin_types import (
    ConsumerGroupDescription,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    GroupMember,
    GroupMetadata,
    MemberAssignment,
    MemberDescription,
)
from ._commits import commit_without_members
from ._coordinator import Coordinator, find_coordinator
from ._errors import KafkaError, KafkaException, failure_of
from ._group_classic_protocol import read_assignment
from ._offsets import Offsets
from ._requests import Requests
from ._types import OFFSET_INVALID, BrokerMetadata, Node, TopicPartition, error_of

_NOT_OF_CONSUMERS = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNSUPPORTED_VERSION)
"""ConsumerGroupDescribe's errors for a group of the classic protocol, and where the protocol is off."""


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


def describe_group(requests: Requests, group: str, timeout: float) -> ConsumerGroupDescription:
    """A group of either protocol, described by its coordinator. One that does not exist is DEAD."""
    node = find_coordinator(requests, group, timeout)
    if requests.network.versions(requests.key("ConsumerGroupDescribe"), broker=node.id, timeout=timeout):
        message: dict[str, Any] = {"group_ids": [group], "include_authorized_operations": False}
        response = requests.send_until("ConsumerGroupDescribe", message, broker=node.id, timeout=timeout)
        [described] = response["groups"]
        if described["error_code"] not in _NOT_OF_CONSUMERS:
            return _of_consumer_protocol(described, node)
    response = requests.send_until("DescribeGroups", {"groups": [group]}, broker=node.id, timeout=timeout)
    [described] = response["groups"]
    if failure := failure_of(described):
        raise failure
    return ConsumerGroupDescription(
        group,
        described["protocol_type"] == "",
        [_classic_member(member, described["protocol_type"]) for member in described["members"]],
        described["protocol_data"],
        ConsumerGroupState.of(described["group_state"]),
        node,
        ConsumerGroupType.CLASSIC,
    )


def _of_consumer_protocol(described: dict[str, Any], node: Node) -> ConsumerGroupDescription:
    if failure := failure_of(described):
        raise failure
    return ConsumerGroupDescription(
        described["group_id"],
        False,
        [
            MemberDescription(
                member["member_id"],
                member["client_id"],
                member["client_host"],
                _assignment(member["assignment"]),
                member["instance_id"],
                _assignment(member["target_assignment"]),
            )
            for member in described["members"]
        ],
        described["assignor_name"],
        ConsumerGroupState.of(described["group_state"]),
        node,
        ConsumerGroupType.CONSUMER,
    )


def _assignment(assignment: dict[str, Any]) -> MemberAssignment:
    return MemberAssignment(
        [
            TopicPartition(topic["topic_name"], partition)
            for topic in assignment["topic_partitions"]
            for partition in topic["partitions"]
        ]
    )


def _classic_member(member: dict[str, Any], protocol: str) -> MemberDescription:
    assigned = read_assignment(member["member_assignment"]) if protocol == "consumer" else []
    return MemberDescription(
        member["member_id"],
        member["client_id"],
        member["client_host"],
        MemberAssignment(assigned),
        member.get("group_instance_id"),
    )
