"""`Producer.produce_table`: rows of Arrow tables as records.

Broken if they failed: Spark's writers would lose rows, or not notice that some were not written.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from cluster import KafkaException, Producer, TopicPartition
from tests.client.conftest import WAIT, NewConsumer, NewTopicFactory, read
from tests.conftest import BrokerProcess

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


# Broken if it failed: a part of a record would be lost, or a row would go to the wrong partition.
def test_rows_arrive_as_records(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(2)
    table = pa.table(
        {
            "topic": pa.array([topic, topic, topic]),
            "partition": pa.array([1, 1, 1], pa.int32()),
            "key": pa.array(["k", None, "last"]),
            "value": pa.array([b"v", b"", None], pa.binary()),
            "timestamp": pa.array(
                [1_700_000_000_123_456, None, 1_700_000_000_000_000], pa.timestamp("us", "UTC")
            ),
            "headers": pa.array([[{"key": "h", "value": b"x"}], None, []], HEADERS),
            "more": pa.array([1, 2, 3]),
        }
    )
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        assert producer.produce_table(table) == 3
        assert producer.flush(WAIT) == 0
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 1)])
    found = read(consumer, 3)
    assert [(one.key(), one.value(), one.headers()) for one in found] == [
        (b"k", b"v", [("h", b"x")]),
        (None, b"", None),
        (b"last", None, None),
    ]
    assert found[0].timestamp()[1] == 1_700_000_000_123
    assert found[1].timestamp()[1] > 1_700_000_000_123


# Broken if it failed: a large table would raise BufferError, or wait for ever.
def test_a_full_queue_is_waited_for(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(1)
    settings = {"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": 100}
    rows = pa.table({"value": pa.array([str(number) for number in range(2_000)])})
    with Producer(settings) as producer:
        assert producer.produce_table(rows, topic) == 2_000
        assert producer.flush(WAIT) == 0
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    assert [one.value() for one in read(consumer, 2_000)] == [str(number).encode() for number in range(2_000)]


# Broken if it failed: rows that were not written would be taken for written ones.
def test_a_row_that_is_not_written_is_an_error_of_flush(
    broker: BrokerProcess, new_topic: NewTopicFactory
) -> None:
    topic = new_topic(1, max_message_bytes="1000")
    rows = pa.table({"value": pa.array([b"small", b"x" * 5_000])})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce_table(rows, topic)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        producer.flush(WAIT)
    # It was said once, and the producer can go on.
    producer.produce_table(rows.slice(0, 1), topic)
    assert producer.flush(WAIT) == 0
    producer.close()


# Broken if it failed: a wrong table would be written in part, or the error would not say what is wrong.
def test_a_table_that_cannot_be_records_is_refused(broker: BrokerProcess, new_topic: NewTopicFactory) -> None:
    topic = new_topic(1)
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        with pytest.raises(ValueError, match="needs a column key or a column value"):
            producer.produce_table(pa.table({"offset": [1]}), topic)
        for columns, message in (
            ({"value": [1]}, "column value has the type Int64; binary or string is needed"),
            ({"value": ["v"], "partition": ["1"]}, "column partition has the type Utf8; int32 is needed"),
            ({"value": ["v"], "topic": [b"t"]}, "column topic has the type Binary; string is needed"),
        ):
            with pytest.raises(TypeError, match=message):
                producer.produce_table(pa.table(columns), topic)
        with pytest.raises(ValueError, match="row 1 names no topic"):
            producer.produce_table(pa.table({"value": ["a", "b"], "topic": [topic, None]}))
        with pytest.raises(TypeError, match="an Arrow table or record batch is needed, not list"):
            producer.produce_table(["v"], topic)
        assert producer.flush(WAIT) == 0
        absent = pa.table({"value": ["v"], "partition": pa.array([5], pa.int32())})
        with pytest.raises(KafkaException, match="partition 5"):
            producer.produce_table(absent, topic)
    assert len(producer) == 0
