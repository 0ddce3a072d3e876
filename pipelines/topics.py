"""Creates and fills topics, for the programs that load the pipelines' data."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Protocol

from cluster import AdminClient, NewTopic, Producer

TIMEOUT = 60.0
# The timestamps are in 2013. With Kafka's defaults, retention would delete the records at once, and each week
# would begin a new segment.
SETTINGS = {"retention.ms": "-1", "segment.ms": str(2 * 366 * 86_400_000)}


class Event(Protocol):
    """What becomes a record; `timestamp` in milliseconds since 1970 UTC."""

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def timestamp(self) -> int: ...


def arguments(described: str | None) -> argparse.Namespace:
    """`bootstrap`, and the days [`first`, `last`) in UTC, of a program that loads flights."""
    parser = argparse.ArgumentParser(description=(described or "").partition("\n")[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--from", dest="first", type=_day, default=_day("2013-01-01"))
    parser.add_argument("--until", dest="last", type=_day, default=_day("2014-01-02"))
    return parser.parse_args()


def _day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def create(bootstrap: str, topics: dict[str, int]) -> set[str]:
    """Creates those topics that are not there, and returns them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    there = admin.list_topics(timeout=TIMEOUT).topics
    new = [NewTopic(name, count, -1, config=SETTINGS) for name, count in topics.items() if name not in there]
    for future in (admin.create_topics(new) if new else {}).values():
        future.result(timeout=TIMEOUT)
    admin.close()
    return {one.topic for one in new}


def send(bootstrap: str, topic: str, events: Iterable[Event]) -> int:
    """Produces the events, and returns their number when all are acknowledged."""
    failed: list[object] = []
    count = 0
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"}
    with Producer(settings) as producer:
        for event in events:
            while True:
                try:
                    producer.produce(
                        topic,
                        event.value,
                        event.key,
                        timestamp=event.timestamp,
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            count += 1
            if count % 2_000 == 0:
                producer.poll(0)
        left = producer.flush(TIMEOUT)
    if left or failed:
        raise SystemExit(f"load: {left} records of {topic} were not acknowledged, {len(failed)} failed")
    return count
