"""Produces the life of each flight of 2013 as changes of a table into a topic, for changes.toml.

python pipelines/changes/load.py BOOTSTRAP [--from 2013-01-01] [--until 2014-01-02]

The records of the topic `flight-changes` have the form of Debezium: the key is the row's key, the value is
`{"op": "c", "after": {...}, "ts_ms": ...}`. A flight is created a day before its scheduled departure, updated
when it departs and when it arrives, and deleted if it is cancelled. A deletion is followed by a record
without a value, as Debezium writes it for compaction. The records are in the order of their time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "demo"), str(ROOT / "pipelines")]
import flights  # noqa: E402
import topics  # noqa: E402

TOPIC = "flight-changes"
PARTITIONS = 4
MINUTE = 60_000
DAY = 1440 * MINUTE


@dataclass(frozen=True)
class Change:
    """A record of the topic."""

    key: bytes
    value: bytes | None
    timestamp: int


def life(row: dict[str, str]) -> Iterator[Change]:
    """The changes of one flight."""
    scheduled = flights.departure_ms(row)
    key = f"{row['carrier']}{row['flight']} {row['origin']} {row['year']}-{row['month']}-{row['day']}"
    after: dict[str, object] = {
        "id": key,
        "carrier": row["carrier"],
        "origin": row["origin"],
        "dest": row["dest"],
        "scheduled": scheduled,
        "state": "planned",
    }

    def change(op: str, at: int) -> Change:
        image = {"before": after, "after": None} if op == "d" else {"after": after}
        value = json.dumps({"op": op, **image, "ts_ms": at}, separators=(",", ":"))
        return Change(key.encode(), value.encode(), at)

    yield change("c", scheduled - DAY)
    if row["dep_time"] == flights.MISSING:
        yield change("d", scheduled)
        yield Change(key.encode(), None, scheduled)
        return
    departed = scheduled + int(row["dep_delay"]) * MINUTE
    after = {**after, "state": "departed", "dep_delay": int(row["dep_delay"]), "tailnum": row["tailnum"]}
    yield change("u", departed)
    if row["arr_delay"] != flights.MISSING:
        after = {**after, "state": "arrived", "arr_delay": int(row["arr_delay"])}
        yield change("u", departed + int(row["air_time"]) * MINUTE)


def changes(first: datetime, last: datetime) -> list[Change]:
    """The changes of the flights that are scheduled in [first, last), in the order of time."""
    found = [
        change
        for row in flights.rows("flights")
        if first.timestamp() * 1000 <= flights.departure_ms(row) < last.timestamp() * 1000
        for change in life(row)
    ]
    # A stable sort: the changes of one flight keep their order.
    return sorted(found, key=lambda change: change.timestamp)


def main() -> None:
    given = topics.arguments(__doc__)
    topics.create(given.bootstrap, {TOPIC: PARTITIONS})
    print(f"{TOPIC}: {topics.send(given.bootstrap, TOPIC, changes(given.first, given.last)):,} records")


if __name__ == "__main__":
    main()
