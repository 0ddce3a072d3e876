"""The records of __transaction_state in Kafka's format.

A key is an int16 version (0) and TransactionLogKey. A value is an int16 version and TransactionLogValue; null
(a tombstone) removes the transactional id. As Kafka 3.9, this writes version 0; from `transaction.version`
1 on, which Kafka 3.9 does not have, version 1. Both are read. Pure.
"""

from __future__ import annotations

from typing import Any

from cluster.model import TopicPartition
from cluster.state_topics import Batch, Entry, Producer
from cluster.transactions.messages import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    STATES,
    Stored,
    TransactionState,
    Write,
)
from logcore._native import decode_data, encode_data

_KEY_VERSION = 0
_PREFIX = _KEY_VERSION.to_bytes(2, "big")


def encode_write(write: Write, transaction_version: int) -> Batch:
    """The batch of a Write. `transaction_version`: the cluster's."""
    key = _PREFIX + encode_data(
        "TransactionLogKey", _KEY_VERSION, {"transactional_id": write.transactional_id}
    )
    return Batch([(key, None if write.stored is None else _encode(write.stored, transaction_version))])


def _encode(stored: Stored, transaction_version: int) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(stored.partitions):
        topics.setdefault(topic, []).append(number)
    partitions = [{"topic": topic, "partition_ids": numbers} for topic, numbers in topics.items()]
    fields: dict[str, Any] = {
        "producer_id": stored.producer.id,
        "producer_epoch": stored.producer.epoch,
        "transaction_timeout_ms": stored.timeout_ms,
        "transaction_status": stored.state.number,
        "transaction_partitions": None if stored.state is TransactionState.EMPTY else partitions,
        "transaction_last_update_timestamp_ms": stored.updated_ms,
        "transaction_start_timestamp_ms": stored.start_ms,
        "previous_producer_id": stored.previous_id,
        "next_producer_id": stored.next_id,
        "client_transaction_version": stored.client_version,
    }
    # What follows an epoch a transaction stays readable after the cluster's version is lowered.
    version = min(1, max(transaction_version, stored.client_version))
    return version.to_bytes(2, "big") + encode_data("TransactionLogValue", version, fields)


def read_record(entry: Entry) -> tuple[str, Stored | None]:
    """The transactional id and its state. Raises ValueError if the record is damaged or of another kind."""
    if entry.key is None or entry.key[:2] != _PREFIX:
        raise ValueError("not a transaction's key")
    name = decode_data("TransactionLogKey", _KEY_VERSION, entry.key[2:])["transactional_id"]
    return name, None if entry.value is None else _decode(entry.value)


def _decode(value: bytes) -> Stored:
    fields = decode_data("TransactionLogValue", int.from_bytes(value[:2], "big", signed=True), value[2:])
    state = STATES.get(fields["transaction_status"])
    if state is None:
        raise ValueError(f"the state {fields['transaction_status']} is unknown")
    partitions = frozenset(
        TopicPartition(topic["topic"], number)
        for topic in fields["transaction_partitions"] or ()
        for number in topic["partition_ids"]
    )
    return Stored(
        Producer(fields["producer_id"], fields["producer_epoch"]),
        Producer(NO_PRODUCER_ID, NO_EPOCH),
        fields["transaction_timeout_ms"],
        state,
        partitions,
        fields["transaction_last_update_timestamp_ms"],
        fields["transaction_start_timestamp_ms"],
        fields.get("client_transaction_version", 0),
        fields.get("previous_producer_id", NO_PRODUCER_ID),
        fields.get("next_producer_id", NO_PRODUCER_ID),
    )
