"""Producers and consumers of several client libraries, each in a thread, which record a history.

The producers are idempotent and wait for longer than any fault lasts. Callbacks run in the client's thread.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka

import cluster.client

from .history import UNKNOWN_OFFSET, Acked, Failed, History, Read, Sent, value_of

PARTITIONS = 3
KEYS = 24
RECORD_SECONDS = 0.005
"""The interval of each producer's records."""
TIMEOUT_MS = 2000
"""The limit of a request to a broker that does not answer."""
PATIENCE_MS = 180_000
END_SECONDS = 60.0
POLL_SECONDS = 0.1

PRODUCERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ours": cluster.client.Producer,
    "librdkafka": confluent_kafka.Producer,
}
CLIENT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": TIMEOUT_MS,
    # A broker that is cut off answers no connection attempt.
    "socket.connection.setup.timeout.ms": 1000,
    # The faults fill the log otherwise.
    "log_level": 0,
}


class Load:
    """The clients of one topic. ``stop`` ends them once everything is acknowledged and read."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.history = History()
        self.changed = threading.Condition()
        """Notified after each acknowledgement."""
        self._bootstrap, self._topic = bootstrap, topic
        self._sent_at: dict[tuple[str, int], float] = {}
        self._newest: dict[int, float] = {}
        self._stop, self._end = threading.Event(), threading.Event()
        self._ends: dict[int, int] = {}
        self._failures: list[BaseException] = []
        self._producers = [
            self._thread(name, self._produce, name, make, random.Random(f"{seed} {name}"))
            for name, make in PRODUCERS.items()
        ]
        readers = {"ours": self._ours, "librdkafka": self._librdkafka, "aiokafka": self._aiokafka}
        self._consumers = [
            self._thread(name, self._consume, read, self.history.reads.setdefault(name, []))
            for name, read in readers.items()
        ]
        members = {"ours": cluster.client.Consumer, "librdkafka": confluent_kafka.Consumer}
        self._members = [
            self._thread(
                f"{name} in a group", self._join, make, self.history.group_reads.setdefault(name, [])
            )
            for name, make in members.items()
        ]

    def start(self) -> None:
        for thread in (*self._consumers, *self._members, *self._producers):
            thread.start()

    def note(self, text: str) -> None:
        self.history.notes.append((time.monotonic(), text))

    def newest(self, partition: int) -> float:
        """When the newest acknowledged record of the partition was sent."""
        return self._newest.get(partition, 0.0)

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Waits for acknowledgements until ``holds``. Returns whether it does."""
        with self.changed:
            return self.changed.wait_for(lambda: bool(self._failures) or holds(), seconds) and holds()

    def check(self) -> None:
        """Raises what a client raised."""
        if self._failures:
            raise AssertionError("a client failed") from self._failures[0]

    def stop(self) -> None:
        """Waits until everything is acknowledged, then until the consumers have read it."""
        self._stop.set()
        for thread in self._producers:
            thread.join(END_SECONDS + PATIENCE_MS / 1000)
        self.check()
        self.note("everything is acknowledged")
        self.history.final.extend(self._read_all())
        self.note("a new consumer has read everything")
        for read in self.history.final:
            self._ends[read.partition] = read.offset + 1
        self._end.set()
        for thread in (*self._consumers, *self._members):
            thread.join(2 * END_SECONDS)
            assert not thread.is_alive(), f"the client {thread.name} does not end"
            self.note(f"the client {thread.name} has ended")
        self.check()

    def abandon(self) -> None:
        """Ends the clients, whatever they have not done yet."""
        self._ends.clear()
        self._failures.append(AssertionError("the run ended"))
        self._stop.set()
        self._end.set()

    def _thread(self, name: str, run: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                run(*arguments)
            except BaseException as error:
                self._failures.append(error)
                with self.changed:
                    self.changed.notify_all()

        return threading.Thread(target=guarded, name=name, daemon=True)

    # ---- producers ----

    def _produce(self, name: str, make: Callable[[dict[str, Any]], Any], chance: random.Random) -> None:
        producer = make(
            {
                **CLIENT,
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                # A batch must fit into a segment, however long writes were stopped.
                "batch.size": 16_384,
                "partitioner": "murmur2_random",
                "request.timeout.ms": TIMEOUT_MS,
                "message.timeout.ms": PATIENCE_MS,
            }
        )
        history, number = self.history, 0

        def delivered(number: int, error: Any, message: Any) -> None:
            now = time.monotonic()
            if error is not None:
                history.failed.append(Failed(name, number, str(error), now))
            else:
                offset = message.offset()
                known = offset if offset is not None and offset >= 0 else UNKNOWN_OFFSET
                history.acked.append(Acked(name, number, message.partition(), known, now))
                sent_at = self._sent_at[name, number]
                with self.changed:
                    self._newest[message.partition()] = max(self.newest(message.partition()), sent_at)
                    self.changed.notify_all()

        while not self._stop.wait(RECORD_SECONDS):
            key, now = f"k{chance.randrange(KEYS)}", time.monotonic()
            history.sent.append(Sent(name, number, key, now))
            self._sent_at[name, number] = now

            def report(error: Any, message: Any, number: int = number) -> None:
                delivered(number, error, message)

            producer.produce(self._topic, value_of(name, number), key, on_delivery=report)
            producer.poll(0)
            number += 1
        if not self._failures:
            producer.flush(END_SECONDS)
        if name == "ours":
            producer.close()

    # ---- consumers ----

    def _consume(self, read: Callable[[], Iterator[Read | None]], reads: list[Read]) -> None:
        """Reads from the beginning to the end that is known at the end."""
        following: dict[int, int] = {}
        deadline = float("inf")
        for each in read():
            if each is not None:
                reads.append(each)
                following[each.partition] = each.offset + 1
            if self._end.is_set():
                deadline = min(deadline, time.monotonic() + END_SECONDS)
                if all(following.get(one, 0) >= end for one, end in self._ends.items()):
                    return
                if time.monotonic() > deadline:
                    return

    def _ours(self) -> Iterator[Read | None]:
        return self._assigned(cluster.client.Consumer, cluster.client.TopicPartition)

    def _librdkafka(self) -> Iterator[Read | None]:
        return self._assigned(confluent_kafka.Consumer, confluent_kafka.TopicPartition)

    def _assigned(self, make: Callable[..., Any], place: Callable[..., Any]) -> Iterator[Read | None]:
        consumer = self._consumer(make, {"group.id": "none", "enable.auto.commit": False})
        consumer.assign([place(self._topic, partition, 0) for partition in range(PARTITIONS)])
        try:
            while True:
                yield from self._polled(consumer)
        finally:
            consumer.close()

    def _consumer(self, make: Callable[..., Any], settings: dict[str, Any]) -> Any:
        # An offset that is out of range would be a lost record: it is never reset.
        common = {**CLIENT, "bootstrap.servers": self._bootstrap, "auto.offset.reset": "error"}
        return make({**common, "fetch.wait.max.ms": 200, "fetch.error.backoff.ms": 50, **settings})

    def _polled(self, consumer: Any) -> Iterator[Read | None]:
        message = consumer.poll(POLL_SECONDS)
        if message is None:
            yield None
        elif message.error() is not None:
            self.note(f"{threading.current_thread().name}: {message.error()}")
            yield None
        else:
            key, value = message.key().decode(), message.value().decode()
            yield Read(message.partition(), message.offset(), key, value, time.monotonic())

    def _aiokafka(self) -> Iterator[Read | None]:
        loop = asyncio.new_event_loop()
        consumer = loop.run_until_complete(self._aiokafka_consumer())
        try:
            while True:
                try:
                    polled = loop.run_until_complete(consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000)))
                except aiokafka.errors.OffsetOutOfRangeError as error:
                    # With old metadata it asks a former leader, and names no epoch in its Fetch (version 11).
                    # Such a broker answers as a follower, which may be behind (KIP-392). A record that is
                    # lost stays out of range, and the checker misses it at the end.
                    self.note(f"aiokafka: {error!r}")
                    for place, offset in error.args[0].items():
                        consumer.seek(place, offset)
                    polled = {}
                yield None
                for records in polled.values():
                    for each in records:
                        key, value = each.key.decode(), each.value.decode()
                        yield Read(each.partition, each.offset, key, value, time.monotonic())
        finally:
            # Its own cancellation of a fetch that waits may reach its caller.
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(consumer.stop())
            loop.close()

    async def _aiokafka_consumer(self) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=TIMEOUT_MS,
            fetch_max_wait_ms=200,
            metadata_max_age_ms=1000,
        )
        await consumer.start()
        places = [aiokafka.TopicPartition(self._topic, partition) for partition in range(PARTITIONS)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        return consumer

    def _join(self, make: Callable[..., Any], reads: list[Read]) -> None:
        """A member of the group: reads until the group has read everything."""
        settings = {"group.id": self._topic, "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
        consumer = self._consumer(make, {**settings, "auto.commit.interval.ms": 500})
        consumer.subscribe([self._topic])
        deadline = float("inf")
        while time.monotonic() < deadline:
            reads.extend(each for each in self._polled(consumer) if each is not None)
            if self._end.is_set():
                deadline = min(deadline, time.monotonic() + END_SECONDS)
                if self._failures or self._group_is_done():
                    break
        consumer.close()

    def _group_is_done(self) -> bool:
        reached: dict[int, int] = {}
        for reads in self.history.group_reads.values():
            for each in list(reads):
                reached[each.partition] = max(reached.get(each.partition, 0), each.offset + 1)
        return all(reached.get(partition, 0) >= end for partition, end in self._ends.items())

    def _read_all(self) -> list[Read]:
        """What a new consumer reads, up to the high watermarks."""
        consumer = self._consumer(confluent_kafka.Consumer, {"group.id": "none", "enable.auto.commit": False})
        places = [
            confluent_kafka.TopicPartition(self._topic, partition, 0) for partition in range(PARTITIONS)
        ]
        ends = {place.partition: consumer.get_watermark_offsets(place, END_SECONDS)[1] for place in places}
        consumer.assign(places)
        reads: list[Read] = []
        following = dict.fromkeys(ends, 0)
        deadline = time.monotonic() + END_SECONDS
        while any(following[one] < end for one, end in ends.items()):
            assert time.monotonic() < deadline, f"a new consumer reads up to {following}, not up to {ends}"
            for each in self._polled(consumer):
                if each is not None:
                    reads.append(each)
                    following[each.partition] = each.offset + 1
        consumer.close()
        return reads
