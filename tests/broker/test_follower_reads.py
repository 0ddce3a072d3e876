"""Consumers that read from the replica in their rack (KIP-392).

If one failed, each byte that a consumer reads would cross the racks, or the consumer would read nothing after
its replica is gone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from cluster.client import Consumer, TopicPartition

from .test_cluster import ALL, WAIT_SECONDS, Cluster, cluster, create, produce, run, values

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

pytestmark = pytest.mark.timeout(180)


def bytes_out(made: Cluster, number: int) -> int:
    """The bytes of `t` that a broker sent to consumers."""
    server = made.brokers[number]._server
    assert server is not None
    measured = server.measurements()
    return dict(measured.topics)["t"][measured.topic_counters.index("BytesOut")]


@pytest.mark.parametrize(
    ("client", "position"),
    [(Consumer, TopicPartition), (confluent.Consumer, confluent.TopicPartition)],
    ids=["ours", "librdkafka"],
)
def test_a_consumer_reads_from_its_rack_and_from_the_leader_when_that_replica_is_gone(
    tmp_path: Path, client: Any, position: Any
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, ()) as made:
            for number in ALL:
                await made.start(number, broker_rack=f"rack-{number}", replica_selector_class=SELECTOR)
            await create(made, "t")
            await produce(made, "t", values("a"))
            leader = made.leader("t")
            near = next(number for number in ALL if number != leader)
            consumer = client(
                {
                    "bootstrap.servers": made.bootstrap,
                    "group.id": "g",
                    "client.rack": f"rack-{near}",
                    "auto.offset.reset": "earliest",
                }
            )
            consumer.assign([position("t", 0, 0)])

            def read(count: int) -> list[str]:
                found: list[str] = []
                while len(found) < count:
                    message = consumer.poll(WAIT_SECONDS)
                    assert message is not None
                    if message.error() is None:
                        found.append(message.value().decode())
                return found

            try:
                assert await asyncio.to_thread(read, 100) == values("a")
                assert bytes_out(made, near) > 0
                assert bytes_out(made, leader) == 0
                await made.stop(near)
                await produce(made, "t", values("b"))
                assert await asyncio.to_thread(read, 100) == values("b")
            finally:
                await asyncio.to_thread(consumer.close)

    run(main)
