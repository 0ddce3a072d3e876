"""A producer that never pauses while a cluster changes, and what must be true of its records."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

PATIENCE_SECONDS = 60.0
ASK_AGAIN_SECONDS = 0.1
"""The interval of polling whether a broker has seen a change."""
PARTITIONS = 6
IN_FLIGHT = 200
"""Fewer records at a time leave more of the processor to the brokers."""


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_SECONDS:.0f} s: {what}"
        threading.Event().wait(ASK_AGAIN_SECONDS)


def done(futures: dict[object, Future[object]]) -> list[object]:
    return [each.result(PATIENCE_SECONDS) for each in futures.values()]


class Load:
    """An idempotent producer with acks=all that never pauses. Every record must be acknowledged."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        producer: type[Producer] = Producer,
        in_flight: int = IN_FLIGHT,
        requests_at_once: int = 5,
    ) -> None:
        """`producer` is librdkafka's class, or ours of the same shape. At most `in_flight` records are not
        acknowledged, in at most so many requests at once.
        """
        self.acknowledged: dict[int, list[tuple[int, int]]] = {}
        """By partition, in the order of acknowledgement: each record's offset and number."""
        self.refused: list[KafkaError] = []
        self._topic = topic
        self._in_flight = in_flight
        self._producer = producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": requests_at_once,
                "linger.ms": 5,
                "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
                "log_level": 0,
            }
        )
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                break
            self._producer.produce(
                self._topic, str(number), partition=number % PARTITIONS, on_delivery=self._delivered
            )
            while len(self._producer) > self._in_flight:
                self._producer.poll(0.1)
        self._producer.flush(PATIENCE_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        with self._changed:
            if error is not None:
                self.refused.append(error)
            else:
                known = self.acknowledged.setdefault(message.partition(), [])
                known.append((message.offset(), int(message.value())))
            self._changed.notify_all()

    def count(self) -> int:
        return sum(len(each) for each in self.acknowledged.values())

    def until_more(self, records: int = 1000) -> None:
        """Waits for the acknowledgements of ``records`` more records."""
        with self._changed:
            wanted = self.count() + records
            more = self._changed.wait_for(lambda: self.count() >= wanted or self.refused, PATIENCE_SECONDS)
        assert more, f"{records} more records are not acknowledged after {PATIENCE_SECONDS:.0f} s"
        assert not self.refused, self.refused[0]

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def read_all(bootstrap: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """By partition: the offset and number of every record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    read: dict[int, list[tuple[int, int]]] = {number: [] for number in range(PARTITIONS)}
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, "the end of a partition was not reached"
        error = message.error()
        if error is None:
            read[message.partition()].append((message.offset(), int(message.value())))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            at_end.add(message.partition())
    consumer.close()
    return read


class Group:
    """Two members of a consumer group, each in its own thread, which read every record and commit."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: set[tuple[int, int]] = set()
        self._stopping = threading.Event()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "group",
            "auto.offset.reset": "earliest",
            # A member whose answer was lost with its coordinator must not hold the group up for 45 s.
            "session.timeout.ms": 6000,
            "log_level": 0,
        }
        self.errors: list[KafkaError] = []
        self._topic = topic
        self._settings = settings
        self._threads = [threading.Thread(target=self._run, args=(settings, topic)) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _run(self, settings: dict[str, object], topic: str) -> None:
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        while not self._stopping.is_set():
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    self.seen.add((message.partition(), message.offset()))
                else:
                    self.errors.append(error)
        consumer.close()

    def until_seen(self, written: set[tuple[int, int]]) -> None:
        """Waits until each of these records, by partition and offset, was read."""
        try:
            until(lambda: self.seen >= written, "the group has read every acknowledged record")
        except AssertionError as late:
            missing = sorted(written - self.seen)
            raise AssertionError(
                f"{late}; {len(missing)} are missing: {missing[:10]}; errors: {self.errors[-10:]}; "
                f"{self._state()}"
            ) from late

    def _state(self) -> str:
        """What the group's coordinator says of it."""
        admin = AdminClient({"bootstrap.servers": self._settings["bootstrap.servers"]})
        reader = Consumer(self._settings)
        try:
            (described,) = admin.describe_consumer_groups(["group"]).values()
            group = described.result(PATIENCE_SECONDS)
            partitions = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
            committed = {each.partition: each.offset for each in reader.committed(partitions, 10)}
            members = {
                member.member_id: [each.partition for each in member.assignment.topic_partitions]
                for member in group.members
            }
            return f"{group.state} at broker {group.coordinator}, members {members}, committed {committed}"
        except KafkaException as error:
            return f"its coordinator says: {error}"
        finally:
            reader.close()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
