"""What the figures are grouped by, as data, so that the pipeline and its check mean the same groups."""

from __future__ import annotations

from dataclasses import dataclass

PERCENTILES = (0.5, 0.9, 0.99)
DELAYS = ("dep_delay", "arr_delay")

# Days of the week as ISO numbers them.
WEEKDAYS = {1: "Mon", 2: "Tue", 3: "Wed", 4: "Thu", 5: "Fri", 6: "Sat", 7: "Sun"}

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Bands:
    """A column of the weather cut into bands: each value is in the first whose upper end it is below."""

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

# Table -> the columns its rows are grouped by.
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
