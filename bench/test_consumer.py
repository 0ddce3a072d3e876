"""Compares `Consumer.consume` with `Consumer.poll`, its limit, over the same records in the same run
(pytest-benchmark).

A list must cost less than its records one by one. `make bench` writes the ratio to
bench/results/log-engine.md.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from cluster import Consumer, Producer, TopicPartition
from tests.conftest import BrokerProcess

RECORDS = 500_000
GROUP = f"consumer: {RECORDS:,} records of 100 B (the limit is poll)"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker on tmpfs, with the records in partition 0 of the topic "records"."""
    made = tempfile.mkdtemp(prefix="logcore-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    broker = BrokerProcess(Path(made) / "data", 0, ()).wait_ready()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": RECORDS})
    value = os.urandom(100)
    for _ in range(RECORDS):
        producer.produce("records", value, partition=0)
    assert producer.flush(60) == 0
    yield broker.bootstrap
    broker.stop()
    shutil.rmtree(made)


def consumer_of(bootstrap: str) -> Consumer:
    """A consumer that has read the first record, so that its connections are made."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("records", 0, 0)])
    assert consumer.poll(30) is not None
    return consumer


def measure(benchmark: BenchmarkFixture, bootstrap: str, length: int) -> None:
    """Reads all records, in lists of `length` or (0) one by one."""

    def setup() -> tuple[tuple[Consumer], dict[str, object]]:
        return (consumer_of(bootstrap),), {}

    def read(consumer: Consumer) -> None:
        left = RECORDS - 1
        while left > 0:
            if length == 0:
                left -= consumer.poll(30) is not None
            else:
                left -= len(consumer.consume(min(length, left), 30))

    def teardown(consumer: Consumer) -> None:
        consumer.close()

    benchmark.pedantic(read, setup=setup, teardown=teardown, rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group=GROUP)
def test_limit_poll(benchmark: BenchmarkFixture, bootstrap: str) -> None:
    measure(benchmark, bootstrap, 0)


@pytest.mark.benchmark(group=GROUP)
@pytest.mark.parametrize("length", [100, 10_000])
def test_consume(benchmark: BenchmarkFixture, bootstrap: str, length: int) -> None:
    benchmark.extra_info["goal"] = "≥ 1.5"
    measure(benchmark, bootstrap, length)
