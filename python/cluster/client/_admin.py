"""`AdminClient`: the cluster, topics, their settings, consumer groups and offsets, in confluent-kafka's
shape.

Methods that change or describe return futures at once; their requests run on four threads. `close` fails the
futures that are not done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from logcore import _native

from . import _admin_configs, _admin_groups, _config
from ._admin_cluster import elect_leaders
from ._admin_types import (
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    DescribeClusterResult,
    ElectionType,
    GroupMetadata,
    IsolationLevel,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicCollection,
    TopicDescription,
    TopicPartitionInfo,
)
from ._admin_users import (
    UserScramCredentialAlteration,
    UserScramCredentialsDescription,
    alter_scram,
    describe_scram,
)
from ._coordinator import find_coordinator
from ._errors import KafkaError, KafkaException, failure_of, log_error
from ._requests import ANY_BROKER, Requests, ask_controller, list_topics, seconds
from ._types import ClusterMetadata, Node, TopicPartition, Uuid

Result = TypeVar("Result")
Key = TypeVar("Key")

REQUEST_TIMEOUT = 60.0
"""Seconds for a request to be answered when the caller names no other time."""
OPERATION_TIMEOUT = 60.0
"""Seconds the controller may take to carry a change out."""
_ERROR_CHECK = 0.1
"""Seconds between two looks for failures while `poll` waits."""
_CLOSED = "AdminClient has been closed"


class AdminClient:
    """Administers a cluster. Several threads may share one."""

    def __init__(self, *configs: dict[str, Any], **overrides: Any) -> None:
        config = _config.parse(configs, "", overrides)
        _config.finish_common(config)
        error_cb = config.callbacks.get("error_cb")
        self._error_cb = error_cb or log_error
        self._network = _native.Network(config.values, None if error_cb is not None else log_error)
        self._requests = Requests(self._network)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="logcore-admin")
        self._closed = threading.Event()

    def poll(self, timeout: float | None = -1) -> int:
        """Waits up to `timeout` seconds (negative: until closed) for failures, and calls error_cb with them.

        Returns their number.
        """
        self._check_open()
        deadline = time.monotonic() + seconds(timeout)
        while True:
            errors = self._network.take_errors()
            for error in errors:
                self._error_cb(error)
            left = deadline - time.monotonic()
            if errors or left <= 0 or self._closed.wait(min(left, _ERROR_CHECK)):
                return len(errors)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The cluster's brokers and topics (or one topic).

        Seconds; negative waits for as long as it takes.
        """
        self._check_open()
        return list_topics(self._network, topic, timeout, create=False)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """The cluster's id."""
        return self.list_topics(timeout=timeout).cluster_id

    def describe_cluster(self, *, request_timeout: float = REQUEST_TIMEOUT) -> Future[DescribeClusterResult]:
        """The brokers, the controller and the cluster's id."""
        return self._one(lambda: self._describe_cluster(request_timeout))

    def list_groups(self, group: str | None = None, timeout: float = -1) -> list[GroupMetadata]:
        """The groups of all brokers, or one, with their members.

        Seconds; negative waits for as long as it takes.
        """
        self._check_open()
        return _admin_groups.list_groups(self._requests, group, seconds(timeout))

    def list_offsets(
        self,
        topic_partition_offsets: dict[TopicPartition, OffsetSpec],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        """One offset of each partition, as its specification says; a future for each."""
        questions = [
            (partition.topic, partition.partition, spec._value)
            for partition, spec in topic_partition_offsets.items()
        ]
        committed = isolation_level is IsolationLevel.READ_COMMITTED
        return self._each(
            topic_partition_offsets, lambda: self._list_offsets(questions, committed, request_timeout)
        )

    def list_consumer_group_offsets(
        self,
        list_consumer_group_offsets_request: list[ConsumerGroupTopicPartitions],
        *,
        require_stable: bool = False,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """The committed offsets of one group, for these partitions or for all."""
        group = _admin_groups.check_group_request(list_consumer_group_offsets_request, committing=False)
        ask = _admin_groups.list_offsets_of_group
        return {
            group.group_id: self._one(lambda: ask(self._requests, group, require_stable, request_timeout))
        }

    def alter_consumer_group_offsets(
        self,
        alter_consumer_group_offsets_request: list[ConsumerGroupTopicPartitions],
        *,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """Sets the committed offsets of one group, which must not have members."""
        group = _admin_groups.check_group_request(alter_consumer_group_offsets_request, committing=True)
        change = _admin_groups.alter_offsets_of_group
        return {group.group_id: self._one(lambda: change(self._requests, group, request_timeout))}

    def create_topics(
        self,
        new_topics: list[NewTopic],
        *,
        operation_timeout: float = OPERATION_TIMEOUT,
        request_timeout: float = REQUEST_TIMEOUT,
        validate_only: bool = False,
    ) -> dict[str, Future[None]]:
        """Creates topics; a future each, whose failure is a KafkaException."""
        message = {
            "topics": [_creatable(topic) for topic in new_topics],
            "timeout_ms": int(operation_timeout * 1000),
            "validate_only": validate_only,
        }
        names = [topic.topic for topic in new_topics]
        return self._each(
            names, lambda: self._change("CreateTopics", message, "topics", "name", request_timeout)
        )

    def delete_topics(
        self,
        topics: list[str],
        *,
        operation_timeout: float = OPERATION_TIMEOUT,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> dict[str, Future[None]]:
        """Deletes topics with their records; a future each."""
        message = {"topic_names": list(topics), "timeout_ms": int(operation_timeout * 1000)}
        return self._each(
            topics, lambda: self._change("DeleteTopics", message, "responses", "name", request_timeout)
        )

    def create_partitions(
        self,
        new_partitions: list[NewPartitions],
        *,
        operation_timeout: float = OPERATION_TIMEOUT,
        request_timeout: float = REQUEST_TIMEOUT,
        validate_only: bool = False,
    ) -> dict[str, Future[None]]:
        """Adds partitions to topics; a future each."""
        message = {
            "topics": [
                {
                    "name": topic.topic,
                    "count": topic.new_total_count,
                    "assignments": None
                    if topic.replica_assignment is None
                    else [{"broker_ids": brokers} for brokers in topic.replica_assignment],
                }
                for topic in new_partitions
            ],
            "timeout_ms": int(operation_timeout * 1000),
            "validate_only": validate_only,
        }
        names = [topic.topic for topic in new_partitions]
        return self._each(
            names, lambda: self._change("CreatePartitions", message, "results", "name", request_timeout)
        )

    def describe_topics(
        self, topics: TopicCollection, *, request_timeout: float = REQUEST_TIMEOUT
    ) -> dict[str, Future[TopicDescription]]:
        """Describes topics; a future each."""
        names = topics.topic_names
        return self._each(names, lambda: self._describe_topics(names, request_timeout))

    def describe_configs(
        self, resources: list[ConfigResource], *, request_timeout: float = REQUEST_TIMEOUT
    ) -> dict[ConfigResource, Future[dict[str, ConfigEntry]]]:
        """The settings of topics and brokers by name; a future for each resource."""
        return self._each(resources, lambda: self._describe_configs(resources, request_timeout))

    def alter_configs(
        self,
        resources: list[ConfigResource],
        *,
        validate_only: bool = False,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> dict[ConfigResource, Future[None]]:
        """Replaces all dynamic settings of topics and brokers by those of `set_config`; a future each."""
        return self._alter_configs("AlterConfigs", resources, validate_only, ANY_BROKER, request_timeout)

    def incremental_alter_configs(
        self,
        resources: list[ConfigResource],
        *,
        validate_only: bool = False,
        broker: int = ANY_BROKER,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> dict[ConfigResource, Future[None]]:
        """Changes the settings of topics and brokers that `incremental_configs` name; a future each.

        `broker` takes the request, except for settings of a broker, which that broker takes.
        """
        return self._alter_configs(
            "IncrementalAlterConfigs", resources, validate_only, broker, request_timeout
        )

    def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: list[TopicPartition] | None = None,
        *,
        operation_timeout: float = OPERATION_TIMEOUT,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> Future[dict[TopicPartition, KafkaException | None]]:
        """Elects leaders of these partitions, or of all that need it; the failure of each, or None."""
        return self._one(
            lambda: elect_leaders(
                self._requests, election_type, partitions, operation_timeout, request_timeout
            )
        )

    def describe_user_scram_credentials(
        self, users: list[str] | None = None, *, request_timeout: float = REQUEST_TIMEOUT
    ) -> (
        Future[dict[str, UserScramCredentialsDescription]]
        | dict[str, Future[UserScramCredentialsDescription]]
    ):
        """The SCRAM credentials of users, a future each; of all users in one future."""
        if users is not None:
            return self._each(users, lambda: describe_scram(self._requests, users, request_timeout))

        def ask() -> dict[str, UserScramCredentialsDescription]:
            found = describe_scram(self._requests, None, request_timeout)
            return {user: _or_raise(description) for user, description in found.items()}

        return self._one(ask)

    def alter_user_scram_credentials(
        self,
        alterations: list[UserScramCredentialAlteration],
        *,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> dict[str, Future[None]]:
        """Sets and removes SCRAM credentials; a future for each user."""
        users = {alteration.user for alteration in alterations}
        return self._each(users, lambda: alter_scram(self._requests, alterations, request_timeout))

    def list_consumer_groups(
        self,
        *,
        states: set[ConsumerGroupState] | None = None,
        types: set[ConsumerGroupType] | None = None,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> Future[ListConsumerGroupsResult]:
        """The groups of all brokers; with states or types given, those only."""
        return self._one(lambda: self._list_groups(states, types, request_timeout))

    def describe_consumer_groups(
        self, group_ids: list[str], *, request_timeout: float = REQUEST_TIMEOUT
    ) -> dict[str, Future[ConsumerGroupDescription]]:
        """Describes groups of either protocol; a future each.

        A group that does not exist is described as DEAD, as brokers do.
        """
        ask = partial(_admin_groups.describe_group, self._requests)
        return {group: self._one(partial(ask, group, request_timeout)) for group in group_ids}

    def delete_consumer_groups(
        self, group_ids: list[str], *, request_timeout: float = REQUEST_TIMEOUT
    ) -> dict[str, Future[None]]:
        """Deletes empty groups with their offsets; a future each."""
        change = self._delete_group
        return {group: self._one(partial(change, group, request_timeout)) for group in group_ids}

    def close(self) -> None:
        """Stops.

        Futures that are not done fail, and any later use raises RuntimeError. Closing twice is allowed.
        """
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._network.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.shutdown(wait=False)

    def _each(self, keys: Iterable[Key], ask: Callable[[], dict[Key, Any]]) -> dict[Key, Future[Any]]:
        """One future a key, all answered by one call of `ask`.

        A result that is an exception fails its future only.
        """
        futures: dict[Key, Future[Any]] = {key: Future() for key in keys}
        for future in futures.values():
            future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                answers = ask()
            except BaseException as error:
                for future in futures.values():
                    future.set_exception(error)
                return
            for key, future in futures.items():
                answer = answers.get(key, _missing())
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

        def cancelled(job: Future[None]) -> None:
            # Closed before it began: nothing else would end these futures.
            if job.cancelled():
                for future in futures.values():
                    future.set_exception(RuntimeError(_CLOSED))

        self._check_open()
        if futures:
            self._pool.submit(run).add_done_callback(cancelled)
        return futures

    def _one(self, ask: Callable[[], Result]) -> Future[Result]:
        return self._each([0], lambda: {0: ask()})[0]

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise RuntimeError(_CLOSED)

    def _describe_cluster(self, timeout: float) -> DescribeClusterResult:
        response = self._requests.send_until("Metadata", {"topics": []}, timeout=timeout)
        nodes = {node["node_id"]: _node(node) for node in response["brokers"]}
        return DescribeClusterResult(
            nodes.get(response["controller_id"]), list(nodes.values()), response.get("cluster_id")
        )

    def _list_offsets(
        self, questions: list[tuple[str, int, int]], read_committed: bool, timeout: float
    ) -> dict[TopicPartition, ListOffsetsResultInfo | KafkaException]:
        answers = self._network.list_offsets(questions, timeout=timeout, read_committed=read_committed)
        return {
            TopicPartition(topic, number): ListOffsetsResultInfo(
                offset, timestamp, epoch if epoch >= 0 else None
            )
            if error is None
            else KafkaException(error)
            for topic, number, offset, timestamp, epoch, error in answers
        }

    def _change(
        self, api: str, message: dict[str, Any], results: str, name: str, timeout: float
    ) -> dict[str, KafkaException | None]:
        """A request to the controller; the failure of each result, or None."""

        def codes(response: dict[str, Any]) -> Iterable[int]:
            return [answer["error_code"] for answer in response[results]]

        response = ask_controller(self._requests, api, message, codes, timeout)
        return {answer[name]: failure_of(answer) for answer in response[results]}

    def _describe_topics(
        self, names: list[str], timeout: float
    ) -> dict[str, TopicDescription | KafkaException]:
        message = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
        response = self._requests.send_until("Metadata", message, timeout=timeout)
        nodes = {node["node_id"]: _node(node) for node in response["brokers"]}
        described: dict[str, TopicDescription | KafkaException] = {}
        for topic in response["topics"]:
            described[topic["name"]] = failure_of(topic) or TopicDescription(
                topic["name"],
                Uuid.from_bytes(topic["topic_id"]),
                topic["is_internal"],
                [
                    TopicPartitionInfo(
                        partition["partition_index"],
                        nodes.get(partition["leader_id"]),
                        [_node_of(nodes, node) for node in partition["replica_nodes"]],
                        [_node_of(nodes, node) for node in partition["isr_nodes"]],
                    )
                    for partition in sorted(
                        topic["partitions"], key=lambda found: int(found["partition_index"])
                    )
                ],
            )
        return described

    def _describe_configs(
        self, resources: list[ConfigResource], timeout: float
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaException]:
        found = _admin_configs.describe(self._requests, list(map(_admin_configs.key, resources)), timeout)
        return {
            ConfigResource(kind, name): entries
            if isinstance(entries, KafkaException)
            else {entry["name"]: _admin_configs.config_entry(entry) for entry in entries}
            for (kind, name), entries in found.items()
        }

    def _alter_configs(
        self, api: str, resources: list[ConfigResource], validate_only: bool, broker: int, timeout: float
    ) -> dict[ConfigResource, Future[None]]:
        if api == "AlterConfigs":
            changes = {
                _admin_configs.key(resource): [
                    {"name": name, "value": value} for name, value in resource.set_config_dict.items()
                ]
                for resource in resources
            }
        else:
            changes = {
                _admin_configs.key(resource): list(map(_admin_configs.change, resource.incremental_configs))
                for resource in resources
            }

        def ask() -> dict[ConfigResource, KafkaException | None]:
            answers = _admin_configs.alter(
                self._requests, api, changes, validate_only=validate_only, broker=broker, timeout=timeout
            )
            return {ConfigResource(kind, name): answer for (kind, name), answer in answers.items()}

        return self._each(resources, ask)

    def _list_groups(
        self,
        states: set[ConsumerGroupState] | None,
        types: set[ConsumerGroupType] | None,
        timeout: float,
    ) -> ListConsumerGroupsResult:
        result = ListConsumerGroupsResult()
        for broker in self._network.metadata([], timeout=timeout)["brokers"]:
            try:
                response = self._requests.send_until("ListGroups", {}, broker=broker, timeout=timeout)
            except KafkaException as error:
                result.errors.append(error)
                continue
            if failure := failure_of(response):
                result.errors.append(failure)
                continue
            for group in response["groups"]:
                state = ConsumerGroupState.of(group.get("group_state", ""))
                kind = ConsumerGroupType.of(group.get("group_type", ""))
                if (states is None or state in states) and (types is None or kind in types):
                    simple = group["protocol_type"] == ""
                    result.valid.append(ConsumerGroupListing(group["group_id"], simple, state, kind))
        return result

    def _delete_group(self, group: str, timeout: float) -> None:
        node = find_coordinator(self._requests, group, timeout)
        response = self._requests.send_until(
            "DeleteGroups", {"groups_names": [group]}, broker=node.id, timeout=timeout
        )
        for result in response["results"]:
            if failure := failure_of(result):
                raise failure


def _creatable(topic: NewTopic) -> dict[str, Any]:
    assignment = topic.replica_assignment
    return {
        "name": topic.topic,
        # With an explicit assignment both counts must be -1.
        "num_partitions": -1 if assignment is not None else topic.num_partitions,
        "replication_factor": -1 if assignment is not None else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": brokers}
            for index, brokers in enumerate(assignment or [])
        ],
        "configs": [{"name": name, "value": str(value)} for name, value in topic.config.items()],
    }


def _or_raise(answer: Result | KafkaException) -> Result:
    if isinstance(answer, KafkaException):
        raise answer
    return answer


def _missing() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._FAIL, "the broker's response does not name it"))


def _node(node: dict[str, Any]) -> Node:
    return Node(node["node_id"], node["host"], node["port"], node.get("rack"))


def _node_of(nodes: dict[int, Node], node: int) -> Node:
    """The node of an id. A broker that is down has no address."""
    return nodes.get(node, Node(node, "", -1))
