"""The copier for aiokafka.

usage: aio.py BOOTSTRAP FROM TO GROUP TRANSACTIONAL_ID BATCH
"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerFenced

from cluster.process import print_stacks_on_quit

from . import transformed


async def main(bootstrap: str, source: str, target: str, group: str, name: str, batch: str) -> None:
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=6000,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=10_000
    )
    await producer.start()
    await consumer.start()
    while True:
        found = await consumer.getmany(timeout_ms=1000, max_records=int(batch))
        if not found:
            continue
        try:
            async with producer.transaction():
                sent = [
                    await producer.send(target, transformed(record.value), record.key, at.partition)
                    for at, records in found.items()
                    for record in records
                ]
                await asyncio.gather(*sent)
                offsets = {at: records[-1].offset + 1 for at, records in found.items()}
                await producer.send_offsets_to_transaction(offsets, group)
        except ProducerFenced:
            raise
        except KafkaError:
            # The client has aborted the transaction. The consumer goes back to the committed offsets.
            for at in found:
                if at in consumer.assignment():
                    committed = await consumer.committed(at)
                    consumer.seek(at, committed or 0)


if __name__ == "__main__":
    print_stacks_on_quit()
    asyncio.run(main(*sys.argv[1:]))
