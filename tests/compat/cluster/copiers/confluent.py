"""The copier for confluent-kafka and for our client, which has its API.

usage: confluent.py MODULE BOOTSTRAP FROM TO GROUP TRANSACTIONAL_ID BATCH
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from cluster.process import print_stacks_on_quit

from . import transformed

TIMEOUT = 60.0


class Copier:
    def __init__(self, client: Any, bootstrap: str, group: str, transactional_id: str) -> None:
        self._client = client
        self._moves = (
            client.KafkaError.NOT_COORDINATOR,
            client.KafkaError.COORDINATOR_NOT_AVAILABLE,
            client.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        )
        self._consumer = client.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
            }
        )
        self._producer = client.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 10_000,
                # When a group's coordinator has left the cluster, librdkafka 2.16 looks for the new one only
                # after a connection opens or closes (its issue 5511). Idle ones close soon here.
                "connections.max.idle.ms": 1000,
            }
        )

    def run(self, source: str, target: str, batch: int) -> None:
        consumer, producer = self._consumer, self._producer
        self._retried(lambda: producer.init_transactions(TIMEOUT))
        consumer.subscribe([source])
        while True:
            records = [record for record in consumer.consume(batch, 1.0) if record.error() is None]
            if not records:
                continue
            producer.begin_transaction()
            for record in records:
                copy = transformed(record.value())
                producer.produce(target, copy, key=record.key(), partition=record.partition())
            try:
                offsets = consumer.position(consumer.assignment())
                group = consumer.consumer_group_metadata()
                self._retried(
                    lambda at=offsets, of=group: producer.send_offsets_to_transaction(at, of, TIMEOUT)
                )
                self._retried(lambda: producer.commit_transaction(TIMEOUT))
            except self._client.KafkaException as failure:
                if not failure.args[0].txn_requires_abort():
                    raise
                self._retried(lambda: producer.abort_transaction(TIMEOUT))
                self._rewind()

    def _retried(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except self._client.KafkaException as failure:
                error = failure.args[0]
                if not error.retriable() and error.code() not in self._moves:
                    raise
            else:
                return

    def _rewind(self) -> None:
        """Goes back to the committed offsets."""
        found: list[Any] = []
        assignment = self._consumer.assignment()
        self._retried(lambda: found.extend(self._consumer.committed(assignment, TIMEOUT)))
        for at in found:
            start = at.offset if at.offset >= 0 else 0
            try:
                self._consumer.seek(self._client.TopicPartition(at.topic, at.partition, start))
            except self._client.KafkaException as failure:
                # The partition was taken away.
                if failure.args[0].code() != self._client.KafkaError._STATE:
                    raise


def main(module: str, bootstrap: str, source: str, target: str, group: str, name: str, batch: str) -> None:
    client = importlib.import_module(module)
    Copier(client, bootstrap, group, name).run(source, target, int(batch))


if __name__ == "__main__":
    print_stacks_on_quit()
    main(*sys.argv[1:])
