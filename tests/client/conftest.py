"""Topics of a test's own, and consumers that are closed at its end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from cluster import AdminClient, Consumer, Message, NewTopic, Producer, TopicPartition
from tests.conftest import BrokerProcess

_numbers = itertools.count()
WAIT = 30.0
"""Seconds after which a test stops waiting for something that takes milliseconds."""

NewTopicFactory = Callable[..., str]
NewConsumer = Callable[..., Consumer]


@pytest.fixture
def new_topic(broker: BrokerProcess) -> Iterator[NewTopicFactory]:
    """Makes a topic and returns its name."""
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:

        def make(partitions: int = 1, **config: str) -> str:
            name = f"topic-{next(_numbers)}"
            settings = {key.replace("_", "."): value for key, value in config.items()}
            topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
            admin.create_topics([topic])[name].result(WAIT)
            return name

        yield make


@pytest.fixture
def new_consumer(broker: BrokerProcess) -> Iterator[NewConsumer]:
    """Makes a consumer; without `group_id`, of a group of its own."""
    made: list[Consumer] = []

    def make(**config: Any) -> Consumer:
        # Callbacks are the properties with an underscore in their name.
        settings = {
            name if callable(value) else name.replace("_", "."): value for name, value in config.items()
        }
        group = f"group-{next(_numbers)}"
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def produce(bootstrap: str, topic: str, values: list[bytes | None], **where: Any) -> None:
    """Produces and waits for every acknowledgement."""
    failures: list[object] = []

    def delivered(error: object, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, on_delivery=delivered, **where)
    assert producer.flush(WAIT) == 0
    assert failures == []
    producer.close()


def read(consumer: Consumer, count: int, timeout: float = WAIT) -> list[Message]:
    """Reads `count` messages; a failure among them fails the test."""
    messages: list[Message] = []
    deadline = time.monotonic() + timeout
    while len(messages) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(messages), 0.5):
            assert message.error() is None, message.error()
            messages.append(message)
    assert len(messages) == count
    return messages


def poll_until(consumers: list[Consumer], done: Callable[[], bool], timeout: float = WAIT) -> list[Message]:
    """Polls consumers in turn until `done`; returns their messages."""
    messages: list[Message] = []
    deadline = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < deadline, "it never happened"
        for consumer in consumers:
            message = consumer.poll(0.05)
            if message is not None:
                messages.append(message)
    return messages


def committed(new_consumer: NewConsumer, group: str, topic: str) -> int:
    """The group's committed offset of partition 0, as another consumer sees it."""
    other = new_consumer(group_id=group, enable_auto_commit=False)
    [found] = other.committed([TopicPartition(topic, 0)], WAIT)
    other.close()
    return found.offset


def outcomes(client: object, calls: Mapping[str, tuple[object, ...]]) -> dict[str, object]:
    """What each call of a closed client returns, or the class of its exception."""
    found: dict[str, object] = {}
    for name, arguments in calls.items():
        try:
            found[name] = getattr(client, name)(*arguments)
        except Exception as error:
            found[name] = type(error)
    return found
