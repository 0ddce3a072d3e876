"""Computes the demo's figures a second time, from the source rows alone: without log, broker and Spark.

Percentiles are exact, with linear interpolation at position (n - 1) * fraction of the sorted values, as
Spark's `percentile` defines them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import date

from bands import BANDS, DELAYS, PERCENTILES, TABLES, UNKNOWN, Bands, percentile_column
from flights import MISSING

Key = tuple[object, ...]
Figures = dict[str, float | None]
Table = dict[Key, Figures]

# Spark and Python add the same numbers in another order.
TOLERANCE = 1e-6


def expected(flights: list[dict[str, str]], weather: list[dict[str, str]]) -> dict[str, Table]:
    """The expected content of every table of the pipeline."""
    observed = {(row["origin"], row["time_hour"]): row for row in weather}
    grouped: dict[str, dict[Key, list[dict[str, str]]]] = {name: defaultdict(list) for name in TABLES}
    for row in flights:
        groups = _groups(row, observed.get((row["origin"], row["time_hour"])))
        for name, columns in TABLES.items():
            grouped[name][tuple(groups[column] for column in columns)].append(row)
    return {name: {key: _figures(rows) for key, rows in table.items()} for name, table in grouped.items()}


def differences(expected: Mapping[str, Table], actual: Mapping[str, Table]) -> Iterator[str]:
    """One line for each group or figure that is missing, unexpected or different."""
    for name, table in expected.items():
        found = actual.get(name, {})
        for key in table.keys() - found.keys():
            yield f"{name}: no row for {key}"
        for key in found.keys() - table.keys():
            yield f"{name}: a row for {key}, which the source does not have"
        for key in table.keys() & found.keys():
            for figure, wanted in table[key].items():
                got = found[key].get(figure)
                if not _same(wanted, got):
                    yield f"{name} {key}: {figure} is {got}, but {wanted} from the source rows"


def count_figures(tables: Mapping[str, Table]) -> int:
    """The number of figures to compare."""
    return sum(len(figures) for table in tables.values() for figures in table.values())


def _same(wanted: float | None, got: float | None) -> bool:
    if wanted is None or got is None:
        return wanted is got
    return math.isclose(wanted, got, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _groups(row: dict[str, str], weather: dict[str, str] | None) -> dict[str, object]:
    day = date(int(row["year"]), int(row["month"]), int(row["day"]))
    groups: dict[str, object] = {
        "carrier": row["carrier"],
        "origin": row["origin"],
        "hour": int(row["hour"]),
        "date": day,
        "weekday": day.isoweekday(),
    }
    for bands in BANDS:
        groups[f"{bands.column}_band"] = _band(bands, weather)
    return groups


def _band(bands: Bands, weather: dict[str, str] | None) -> str:
    if weather is None or weather[bands.column] == MISSING:
        return UNKNOWN
    value = float(weather[bands.column])
    return next((label for end, label in bands.ends if value < end), bands.last)


def _figures(rows: list[dict[str, str]]) -> Figures:
    figures: Figures = {
        "flights": len(rows),
        "cancelled": sum(row["dep_time"] == MISSING for row in rows),
    }
    for delay in DELAYS:
        values = sorted(int(row[delay]) for row in rows if row[delay] != MISSING)
        figures[f"{delay}_mean"] = sum(values) / len(values) if values else None
        for fraction in PERCENTILES:
            figures[percentile_column(delay, fraction)] = _percentile(values, fraction) if values else None
    return figures


def _percentile(values: list[int], fraction: float) -> float:
    position = (len(values) - 1) * fraction
    below = math.floor(position)
    above = math.ceil(position)
    return values[below] + (values[above] - values[below]) * (position - below)
