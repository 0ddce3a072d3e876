"""Produces the flights of 2013 and the weather into topics, for flights.toml.

python pipelines/flights/load.py BOOTSTRAP [--from 2013-01-01] [--until 2014-01-02]

The topic `flights` has a record for each flight that is scheduled within these days (UTC), in the order of
scheduled departure. The key is the aircraft, the timestamp the scheduled departure. The topic `weather` has
an observation for each airport and hour; it is filled once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "demo"), str(ROOT / "pipelines")]
import flights  # noqa: E402
import topics  # noqa: E402

PARTITIONS = 4


def observations() -> list[flights.Event]:
    """The weather, with the airport as key and the hour as timestamp."""
    found = []
    for row in flights.rows("weather"):
        hour = datetime.fromisoformat(row["time_hour"])
        values = {
            name: None if row[name] == flights.MISSING else float(row[name])
            for name in ("temp", "wind_speed", "precip", "visib")
        }
        value = json.dumps({"origin": row["origin"], "hour": row["time_hour"], **values}).encode()
        found.append(flights.Event(row["origin"].encode(), value, int(hour.timestamp() * 1000)))
    return found


def departures(first: datetime, last: datetime) -> Iterable[flights.Event]:
    """The flights that are scheduled in [first, last), with the aircraft as key."""
    for event in flights.events(flights.rows("flights")):
        if first.timestamp() * 1000 <= event.timestamp < last.timestamp() * 1000:
            aircraft = json.loads(event.value)["tailnum"] or "unknown"
            yield flights.Event(aircraft.encode(), event.value, event.timestamp)


def main() -> None:
    given = topics.arguments(__doc__)
    new = topics.create(given.bootstrap, {"flights": PARTITIONS, "weather": 1, "flights-by-hour": PARTITIONS})
    if "weather" in new:
        print(f"weather: {topics.send(given.bootstrap, 'weather', observations()):,} records")
    sent = topics.send(given.bootstrap, "flights", departures(given.first, given.last))
    print(f"flights: {sent:,} records")


if __name__ == "__main__":
    main()
