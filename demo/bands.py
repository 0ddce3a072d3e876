"""The groups of the report's figures, as data that the pipeline and its check share."""

from __future__ import annotations

from dataclasses import dataclass

PERCENTILES = (0.5, 0.9, 0.99)
DELAYS = ("dep_delay", "arr_delay")

# ISO's numbers of the weekdays.
WEEKDAYS = {1: "Mon", 2: "Tue", 3: "Wed", 4: "Thu", 5: "Fri", 6: "Sat", 7: "Sun"}

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Bands:
    """Bands of a weather column. A value belongs to the first band whose upper end is above it, or to the
    last.
    """

    table: str
    column: str
    title: str
    unit: str
    ends: tuple[tuple[float, str], ...]
    last: str

    @property
    def labels(self) -> tuple[str, ...]:
        return (*(label for _, label in self.ends), self.last)


BANDS = (
    Bands(
        "by_visibility",
        "visib",
        "Visibility",
        "miles",
        ((0.5, "under ½"), (1.0, "½ to 1"), (3.0, "1 to 3"), (6.0, "3 to 6"), (10.0, "6 to 10")),
        "10 (clear)",
    ),
    Bands(
        "by_wind",
        "wind_speed",
        "Wind",
        "mph",
        ((5.0, "under 5"), (10.0, "5 to 10"), (15.0, "10 to 15"), (20.0, "15 to 20"), (25.0, "20 to 25")),
        "25 and more",
    ),
    Bands(
        "by_precipitation",
        "precip",
        "Precipitation",
        "inches an hour",
        ((0.001, "none"), (0.05, "under 0.05"), (0.1, "0.05 to 0.1"), (0.25, "0.1 to 0.25")),
        "0.25 and more",
    ),
)

# For each table, the columns by which its rows are grouped.
TABLES: dict[str, tuple[str, ...]] = {
    "total": (),
    "by_carrier": ("carrier",),
    "by_origin": ("origin",),
    "by_hour": ("hour",),
    "by_day": ("date",),
    "by_weekday_hour": ("weekday", "hour"),
    **{bands.table: (f"{bands.column}_band",) for bands in BANDS},
}


def percentile_column(delay: str, fraction: float) -> str:
    """The name of a percentile's column, as in dep_delay_p90."""
    return f"{delay}_p{round(fraction * 100)}"
