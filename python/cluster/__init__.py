"""Kafka clients and a Kafka broker for Python.

`from cluster import Producer, Consumer, AdminClient` has confluent-kafka's shape: a script moves over by changing its
import. The names below come from `cluster.client`, which is imported when the first of them is used, so that the broker
and the coordinator, which live in this package too, do without it.

    Exception
    ├── KafkaException            args[0] (also .error) is a KafkaError: code(), name(), str(), retriable(), fatal()
    ├── BufferError               Producer.produce: the queue is full; poll() and try again
    ├── RuntimeError              the client was closed, or made before a fork
    ├── TypeError, ValueError     an argument of the wrong type or value
    └── KafkaProtocolError        cluster.errors: one class per Kafka error code, for those who speak the protocol
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.client import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        OFFSET_STORED,
        TIMESTAMP_CREATE_TIME,
        TIMESTAMP_LOG_APPEND_TIME,
        TIMESTAMP_NOT_AVAILABLE,
        AdminClient,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        NewPartitions,
        NewTopic,
        Producer,
        ResourceType,
        TopicCollection,
        TopicPartition,
    )

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AdminClient",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewPartitions",
    "NewTopic",
    "Producer",
    "ResourceType",
    "TopicCollection",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'cluster' has no attribute {name!r}")
    from cluster import client

    value = getattr(client, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
