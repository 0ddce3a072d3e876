"""Operations on transactions, records and a group's offsets that confluent-kafka's AdminClient does not have.

Functions that take an AdminClient. All run in the calling thread and raise KafkaException.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._admin_cluster import TIMEOUT, Administers, _by_topic
from ._coordinator import TRANSACTION, Coordinator, find_coordinator
from ._errors import KafkaError, KafkaException, failure_of
from ._requests import Requests, retry
from ._types import TopicPartition, error_of


@dataclass(frozen=True)
class ProducerState:
    """What a partition knows of a producer (`DescribeProducersResult`, KIP-664). -1 stands for no value."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    """Milliseconds since 1970."""
    coordinator_epoch: int
    current_txn_start_offset: int
    """The first offset of its open transaction, or -1."""


@dataclass(frozen=True)
class TransactionListing:
    """A transactional id and its state."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True)
class TransactionDescription:
    """A transactional id, as its coordinator describes it."""

    coordinator: int
    """The broker's id."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int
    """-1 when no transaction is open."""
    partitions: list[TopicPartition] = field(hash=False)


def describe_producers(
    admin: Administers,
    partitions: Collection[TopicPartition],
    broker: int | None = None,
    *,
    timeout: float = TIMEOUT,
) -> dict[TopicPartition, list[ProducerState] | KafkaException]:
    """The producers that partitions have state of, asked of their leaders or of `broker`; or a partition's
    failure.
    """
    found: dict[TopicPartition, list[ProducerState] | KafkaException] = {}
    for node, asked in _by_broker(admin._requests, partitions, broker, timeout).items():
        message = {
            "topics": [
                {"name": name, "partition_indexes": numbers} for name, numbers in _by_topic(asked).items()
            ]
        }
        answer = admin._requests.send_until("DescribeProducers", message, broker=node, timeout=timeout)
        for topic in answer["topics"]:
            for one in topic["partitions"]:
                partition = TopicPartition(topic["name"], one["partition_index"])
                found[partition] = failure_of(one) or [
                    ProducerState(**producer) for producer in one["active_producers"]
                ]
    return found


def list_transactions(
    admin: Administers,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    duration_ms: int = -1,
    timeout: float = TIMEOUT,
) -> dict[int, list[TransactionListing]]:
    """The transactional ids of every broker, by its id: those in one of `states`, of `producer_ids`, and open
    for longer than `duration_ms`. Empty filters and -1 stand for all.
    """
    message = {
        "state_filters": list(states),
        "producer_id_filters": list(producer_ids),
        "duration_filter": duration_ms,
    }
    found = {}
    for broker in admin._requests.network.metadata([], timeout=timeout)["brokers"]:
        answer = admin._requests.send_until("ListTransactions", message, broker=broker, timeout=timeout)
        if failure := failure_of(answer):
            raise failure
        found[broker] = [
            TransactionListing(one["transactional_id"], one["producer_id"], one["transaction_state"])
            for one in answer["transaction_states"]
        ]
    return found


def describe_transactions(
    admin: Administers, transactional_ids: Iterable[str], *, timeout: float = TIMEOUT
) -> dict[str, TransactionDescription | KafkaException]:
    """Transactional ids as their coordinators describe them, or the failure of each."""
    return {name: _describe_transaction(admin._requests, name, timeout) for name in transactional_ids}


def _describe_transaction(
    requests: Requests, name: str, timeout: float
) -> TransactionDescription | KafkaException:
    def attempt(left: float) -> TransactionDescription:
        node = find_coordinator(requests, name, left, TRANSACTION)
        message = {"transactional_ids": [name]}
        [one] = requests.send("DescribeTransactions", message, broker=node.id, timeout=left)[
            "transaction_states"
        ]
        if failure := failure_of(one):
            raise failure
        return TransactionDescription(
            node.id,
            name,
            one["producer_id"],
            one["producer_epoch"],
            one["transaction_state"],
            one["transaction_timeout_ms"],
            one["transaction_start_time_ms"],
            [
                TopicPartition(topic["topic"], number)
                for topic in one["topics"]
                for number in topic["partitions"]
            ],
        )

    try:
        return retry(attempt, timeout, f"describing the transaction of {name}")
    except KafkaException as error:
        return error


def abort_transaction(
    admin: Administers,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    *,
    timeout: float = TIMEOUT,
) -> None:
    """Ends a producer's open transaction in one partition with an abort marker, for a transaction that its
    coordinator does not know (KIP-664). Raises KafkaException.
    """
    message = {
        "markers": [
            {
                "producer_id": producer_id,
                "producer_epoch": producer_epoch,
                "transaction_result": False,
                "topics": [{"name": partition.topic, "partition_indexes": [partition.partition]}],
                "coordinator_epoch": coordinator_epoch,
            }
        ]
    }

    def attempt(left: float) -> None:
        [node] = _by_broker(admin._requests, [partition], None, left)
        answer = admin._requests.send("WriteTxnMarkers", message, broker=node, timeout=left)
        for marker in answer["markers"]:
            for topic in marker["topics"]:
                for one in topic["partitions"]:
                    if failure := failure_of(one):
                        raise failure

    retry(attempt, timeout, f"aborting a transaction in {partition.topic}-{partition.partition}")


def delete_records(
    admin: Administers, offsets: Mapping[TopicPartition, int], *, timeout: float = TIMEOUT
) -> dict[TopicPartition, int | KafkaException]:
    """Deletes the records before an offset of each partition; -1 stands for the high watermark. The first
    offset that is left, or the failure, of each.
    """
    found: dict[TopicPartition, int | KafkaException] = {}
    for node, asked in _by_broker(admin._requests, offsets, None, timeout).items():
        topics: dict[str, list[dict[str, int]]] = {}
        for partition in asked:
            one = {"partition_index": partition.partition, "offset": offsets[partition]}
            topics.setdefault(partition.topic, []).append(one)
        message = {
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            "timeout_ms": int(timeout * 1000),
        }
        answer = admin._requests.send_until("DeleteRecords", message, broker=node, timeout=timeout)
        for topic in answer["topics"]:
            for one in topic["partitions"]:
                key = TopicPartition(topic["name"], one["partition_index"])
                found[key] = failure_of(one) or one["low_watermark"]
    return found


def delete_group_offsets(
    admin: Administers, group: str, partitions: Collection[TopicPartition], *, timeout: float = TIMEOUT
) -> dict[TopicPartition, KafkaError | None]:
    """Deletes a group's offsets in partitions that it does not read. The error of each partition, or None.

    Raises KafkaException when the group refuses all of them.
    """
    message = {
        "group_id": group,
        "topics": [
            {"name": name, "partitions": [{"partition_index": number} for number in numbers]}
            for name, numbers in _by_topic(partitions).items()
        ],
    }
    coordinator = Coordinator(admin._requests, group)
    answer = coordinator.ask_until("OffsetDelete", message, _codes, timeout=timeout)
    if failure := failure_of(answer):
        raise failure
    return {
        TopicPartition(topic["name"], one["partition_index"]): error_of(one["error_code"])
        for topic in answer["topics"]
        for one in topic["partitions"]
    }


def _by_broker(
    requests: Requests, partitions: Collection[TopicPartition], broker: int | None, timeout: float
) -> dict[int, list[TopicPartition]]:
    """The partitions by their leaders, or all of them under `broker`. Raises KafkaException for a partition
    without a leader.
    """
    if broker is not None:
        return {broker: list(partitions)}
    names = sorted({partition.topic for partition in partitions})

    def attempt(left: float) -> dict[int, list[TopicPartition]]:
        message = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
        leaders = {}
        for topic in requests.send("Metadata", message, timeout=left)["topics"]:
            if failure := failure_of(topic):
                raise failure
            for one in topic["partitions"]:
                leaders[topic["name"], one["partition_index"]] = one["leader_id"]
        found: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader = leaders.get((partition.topic, partition.partition))
            if leader is None:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            if leader < 0:
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            found.setdefault(leader, []).append(partition)
        return found

    return retry(attempt, timeout, "finding leaders")


def _codes(answer: dict[str, Any]) -> set[int]:
    return {answer["error_code"]}
