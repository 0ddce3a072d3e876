"""The usual programs of Python's clients: librdkafka's, kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import confluent_kafka as confluent
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.compat.programs.records import Found, Record, record

SILENCE_MAX = 30.0
"""Seconds within which the next record must come."""


class Librdkafka:
    """confluent-kafka, whose producer and consumer are librdkafka."""

    def produce(self, server: str, topic: str, codec: str, acks: str, count: int) -> None:
        producer = confluent.Producer({"bootstrap.servers": server, "compression.type": codec, "acks": acks})
        errors: list[object] = []
        for index in range(count):
            key, value, headers = record(index)
            while True:
                try:
                    producer.produce(
                        topic,
                        value,
                        key,
                        headers=list(headers),
                        on_delivery=lambda error, _: errors.append(error),
                    )
                    break
                except BufferError:
                    producer.poll(SILENCE_MAX)
            producer.poll(0)
        assert producer.flush(SILENCE_MAX) == 0
        assert errors == [None] * count

    def consume(self, server: str, topic: str, group: str, count: int) -> Iterator[Found]:
        consumer = confluent.Consumer(
            {"bootstrap.servers": server, "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([topic])
        read = 0
        while read < count:
            messages = consumer.consume(min(1000, count - read), SILENCE_MAX)
            assert messages, f"no record came after {read}"
            for message in messages:
                assert message.error() is None, message.error()
                headers = tuple((name, value) for name, value in message.headers() or ())
                found = Record(message.key(), message.value(), headers)
                yield Found(message.partition(), message.offset(), found)
            read += len(messages)
        consumer.close()


class KafkaPython:
    def produce(self, server: str, topic: str, codec: str, acks: str, count: int) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=server,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
        )
        sent = [
            producer.send(topic, value, key, list(headers))
            for key, value, headers in map(record, range(count))
        ]
        producer.flush(SILENCE_MAX)
        for future in sent:
            future.get(SILENCE_MAX)
        producer.close()

    def consume(self, server: str, topic: str, group: str, count: int) -> Iterator[Found]:
        consumer = kafka.KafkaConsumer(
            topic, bootstrap_servers=server, group_id=group, auto_offset_reset="earliest"
        )
        read = 0
        while read < count:
            polled = consumer.poll(timeout_ms=int(SILENCE_MAX * 1000))
            assert polled, f"no record came after {read}"
            for records in polled.values():
                for r in records:
                    headers = tuple((name, value) for name, value in r.headers)
                    yield Found(r.partition, r.offset, Record(r.key, r.value, headers))
                read += len(records)
        consumer.close()


class Aiokafka:
    def produce(self, server: str, topic: str, codec: str, acks: str, count: int) -> None:
        async def run() -> None:
            async with AIOKafkaProducer(
                bootstrap_servers=server,
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
            ) as producer:
                sent = [
                    await producer.send(topic, value, key, headers=list(headers))
                    for key, value, headers in map(record, range(count))
                ]
                await asyncio.gather(*sent)

        asyncio.run(run())

    def consume(self, server: str, topic: str, group: str, count: int) -> Iterator[Found]:
        with asyncio.Runner() as runner:
            records = self._consume(server, topic, group, count)
            while (batch := runner.run(anext(records, None))) is not None:
                yield from batch

    async def _consume(self, server: str, topic: str, group: str, count: int) -> AsyncIterator[list[Found]]:
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=server, group_id=group, auto_offset_reset="earliest"
        ) as consumer:
            read = 0
            while read < count:
                polled = await consumer.getmany(timeout_ms=int(SILENCE_MAX * 1000))
                assert polled, f"no record came after {read}"
                for records in polled.values():
                    yield [
                        Found(r.partition, r.offset, Record(r.key, r.value, tuple(r.headers)))
                        for r in records
                    ]
                    read += len(records)
