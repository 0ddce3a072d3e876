"""The report's charts as inline SVG, without a library.

Every mark has a `<title>`, which browsers show as a tooltip. Classes name colours of page.css, so the charts
have a dark mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from math import sqrt

from pyspark_logcore.pipeline._svg import line, rect, svg, text, ticks

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@dataclass(frozen=True)
class Day:
    """One day in the daily chart."""

    date: date
    flights: int
    cancelled: int
    delay: float | None


def daily(days: Sequence[Day], notes: dict[date, str]) -> str:
    """A bar for each day: flights that departed at the bottom, cancelled ones on top. A strip below shows
    delays.
    """
    width, left, top, height, strip = 1040.0, 44.0, 34.0, 230.0, 30.0
    step = (width - left) / len(days)
    most = max(day.flights for day in days)
    scale = height / most
    body = [
        part
        for tick in ticks(most)
        for part in (
            line(left, top + height - tick * scale, width, top + height - tick * scale, "grid"),
            text(left - 8, top + height - tick * scale + 4, f"{tick:,.0f}", "axis", "end"),
        )
    ]
    strip_top = top + height + 12
    slowest = max((day.delay or 0.0) for day in days)
    for index, day in enumerate(days):
        x = left + index * step
        share = day.cancelled / day.flights
        tip = (
            f"{day.date:%A %-d %B}: {day.flights:,} departures planned, {day.cancelled:,} cancelled "
            f"({share:.0%})"
            + (f", nine of ten departed within {day.delay:,.0f} min" if day.delay is not None else "")
        )
        flown = (day.flights - day.cancelled) * scale
        gone = day.cancelled * scale
        bar = step * 0.86
        body.append(rect(x, top + height - flown, bar, flown, "flown", tip))
        body.append(rect(x, top + height - flown - gone, bar, gone, "cancelled", tip))
        heat = sqrt(max(day.delay or 0.0, 0.0) / slowest)
        body.append(rect(x, strip_top, step + 0.3, strip, "heat", tip, f'style="fill-opacity:{heat:.3f}"'))
        if day.date.day == 1:
            body.append(text(x, strip_top + strip + 16, MONTHS[day.date.month - 1], "axis"))
        if day.date in notes:
            body.append(line(x + bar / 2, top - 10, x + bar / 2, top + height, "note"))
            anchor = "start" if x < width / 2 else "end"
            body.append(text(x + bar / 2, top - 14, notes[day.date], "remark", anchor))
    body.append(text(left - 8, strip_top + strip / 2 + 4, "delay", "axis", "end"))
    return svg(width, strip_top + strip + 24, body, "Departures and cancellations of each day of 2013")


def heat_map(
    columns: Sequence[str],
    rows: Sequence[str],
    value: Callable[[int, int], float | None],
    tip: Callable[[int, int], str],
    label: str,
) -> str:
    """Cells that are shaded by their value and show it; None leaves a cell empty."""
    left, top, cell_width, cell_height = 44.0, 22.0, 52.0, 36.0
    values = [value(row, column) for row in range(len(rows)) for column in range(len(columns))]
    most = max(found for found in values if found is not None)
    body = [
        text(left + (index + 0.5) * cell_width, 13, name, "axis", "middle")
        for index, name in enumerate(columns)
    ]
    for row, name in enumerate(rows):
        y = top + row * cell_height
        body.append(text(left - 10, y + cell_height / 2 + 4, name, "axis", "end"))
        for column in range(len(columns)):
            x = left + column * cell_width
            found = value(row, column)
            if found is None:
                body.append(rect(x + 1, y + 1, cell_width - 2, cell_height - 2, "empty", extra='rx="3"'))
                continue
            heat = 0.04 + 0.96 * max(found, 0.0) / most
            style = f'rx="3" style="fill-opacity:{heat:.3f}"'
            body.append(rect(x + 1, y + 1, cell_width - 2, cell_height - 2, "heat", tip(row, column), style))
            kind = "cell strong" if heat > 0.55 else "cell"
            body.append(text(x + cell_width / 2, y + cell_height / 2 + 4, f"{found:.0f}", kind, "middle"))
    return svg(left + cell_width * len(columns), top + cell_height * len(rows) + 2, body, label)


@dataclass(frozen=True)
class Spread:
    """A row of the percentile chart: a name, a text beside it, and percentiles in minutes."""

    name: str
    detail: str
    median: float
    ninety: float
    ninety_nine: float


def spreads(rows: Sequence[Spread], label: str) -> str:
    """A line for each row, from the median to the 90th and 99th percentile, on a square-root scale of
    minutes.
    """
    width, left, right, top, step = 1040.0, 230.0, 168.0, 26.0, 27.0
    low = min(row.median for row in rows)
    high = max(row.ninety_nine for row in rows)

    def position(minutes: float) -> float:
        # The square root shows differences of small delays, and keeps long ones on the page.
        return left + (width - left - right) * sqrt((minutes - low) / (high - low))

    bottom = top + step * len(rows)
    body = []
    for mark in (0, 15, 60, 120, 180, 240, 300, 360):
        if low <= mark <= high:
            body.append(line(position(mark), top - 6, position(mark), bottom, "grid"))
            body.append(
                text(position(mark), top - 11, f"{mark} min" if mark else "on time", "axis", "middle")
            )
    for index, row in enumerate(rows):
        y = top + step * (index + 0.5)
        tip = (
            f"{row.name}: half departed within {row.median:,.0f} min of their time, nine of ten within "
            f"{row.ninety:,.0f}, "
            f"99 of 100 within {row.ninety_nine:,.0f}"
        )
        body.append(text(left - 14, y + 4, row.name, "name", "end"))
        body.append(f"<g><title>{escape(tip)}</title>")
        body.append(line(position(row.ninety), y, position(row.ninety_nine), y, "tail"))
        body.append(line(position(row.median), y, position(row.ninety), y, "most"))
        for minutes, kind, radius in (
            (row.median, "p50", 5),
            (row.ninety, "p90", 5),
            (row.ninety_nine, "p99", 4),
        ):
            body.append(f'<circle cx="{position(minutes):.1f}" cy="{y:.1f}" r="{radius}" class="{kind}"/>')
        body.append("</g>")
        body.append(text(width - right + 16, y + 4, row.detail, "axis"))
    return svg(width, bottom + 4, body, label)


@dataclass(frozen=True)
class Bar:
    """One band of the weather: name, minutes of delay, share of cancelled flights, number of flights."""

    name: str
    delay: float
    cancelled: float
    flights: int


def weather(title: str, unit: str, bars: Sequence[Bar], most_delay: float, most_cancelled: float) -> str:
    """Two bars for each band: minutes of delay and share of cancelled flights. All charts have the same
    scales.
    """
    width, left, top, step, half = 330.0, 88.0, 46.0, 42.0, 150.0
    body = [text(0, 14, title, "chart-title"), text(0, 31, unit, "axis")]
    for index, bar in enumerate(bars):
        y = top + index * step
        tip = (
            f"{title} {bar.name}: {bar.flights:,} flights, nine of ten departed within {bar.delay:,.0f} min, "
            f"{bar.cancelled:.1%} cancelled"
        )
        body.append(text(left - 10, y + 18, bar.name, "axis", "end"))
        delay, gone = bar.delay / most_delay * half, bar.cancelled / most_cancelled * half
        body.append(rect(left, y + 2, delay, 14, "flown", tip, 'rx="2"'))
        body.append(text(left + delay + 6, y + 13, f"{bar.delay:.0f} min", "value"))
        body.append(rect(left, y + 18, gone, 10, "cancelled", tip, 'rx="2"'))
        body.append(text(left + gone + 6, y + 27, f"{bar.cancelled:.1%}", "value"))
    return svg(width, top + step * len(bars), body, f"Delay and cancellations by {title.lower()}")


@dataclass(frozen=True)
class Hour:
    """One hour of the day: planned flights, and the minutes within which nine of ten departed."""

    name: str
    flights: int
    delay: float
    tip: str


def hourly(hours: Sequence[Hour]) -> str:
    """A column for each hour's flights and a line for the delay, each on its own scale."""
    width, left, top, height = 1040.0, 44.0, 26.0, 150.0
    step = (width - left) / len(hours)
    most = max(hour.flights for hour in hours)
    slowest = max(hour.delay for hour in hours)
    body = []
    for tick in ticks(most):
        y = top + height - tick / most * height
        body += [line(left, y, width, y, "grid"), text(left - 8, y + 4, f"{tick / 1000:g}k", "axis", "end")]
    points = []
    labels = []
    for index, hour in enumerate(hours):
        x = left + index * step
        tall = hour.flights / most * height
        body.append(
            rect(x + step * 0.1, top + height - tall, step * 0.8, tall, "flown pale", hour.tip, 'rx="2"')
        )
        body.append(text(x + step / 2, top + height + 17, hour.name, "axis", "middle"))
        y = top + height - hour.delay / slowest * height
        points.append(f"{x + step / 2:.1f},{y:.1f}")
        labels.append(text(x + step / 2, y - 8, f"{hour.delay:.0f}", "delay", "middle"))
    body.append(f'<polyline points="{" ".join(points)}" class="curve"/>')
    return svg(width, top + height + 22, [*body, *labels], "Flights and delays by hour of the day")
