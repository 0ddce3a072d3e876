"""The kinds of charts of a report. Each takes the rows of a query; what its columns mean is in `KINDS`.

The drawings have no library and no script. A kind raises ValueError for rows that it cannot draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from html import escape
from math import sqrt
from typing import Any, TypeAlias

from pyspark_logcore.pipeline._svg import (
    circle,
    grouped,
    line,
    number,
    rect,
    short,
    svg,
    text,
    ticks,
)

SERIES_MAX = 6
"""page.css has so many colours."""
_WIDTH = 1040.0
_LABELS_MAX = 14
"""Labels on the horizontal axis: more would overlap."""


@dataclass(frozen=True)
class Rows:
    """The result of a query."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    unit: str = ""

    def amount(self, value: float) -> str:
        return f"{number(value)} {self.unit}".rstrip()


Drawing: TypeAlias = tuple[str, str]
"""SVG or HTML, and the caption below."""


def label(value: object) -> str:
    """A value as text."""
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}" if value.hour or value.minute else f"{value:%Y-%m-%d}"
    if isinstance(value, date):
        return f"{value:%Y-%m-%d}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float | Decimal):
        return number(value if isinstance(value, int) else float(value))
    return str(value)


def _place(value: object) -> str:
    """A value on the horizontal axis; a date without its year."""
    return f"{value:%-d %b}" if isinstance(value, date) and not isinstance(value, datetime) else label(value)


def _numeric(value: object, column: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(f"column {column} must be a number, not {value!r}")
    return float(value)


def _legend(names: Sequence[str], kind: str = "s") -> str:
    if len(names) > SERIES_MAX:
        raise ValueError(f"{len(names)} series; at most {SERIES_MAX} can be told apart")
    keys = (
        f'<span class="key" style="background:var(--{kind}{index})"></span>{escape(name)}'
        for index, name in enumerate(names)
    )
    return "".join(keys)


def _axis(top: float, most: float, height: float, left: float) -> list[str]:
    """Horizontal grid lines with their numbers."""
    body = []
    for tick in ticks(most):
        y = top + height - tick / most * height
        body += [line(left, y, _WIDTH, y, "grid"), text(left - 8, y + 4, short(tick), "axis", "end")]
    return body


def _below(names: Sequence[str], left: float, step: float, y: float) -> list[str]:
    """The labels of the horizontal axis. Some are left out where there are too many."""
    every = -(-len(names) // _LABELS_MAX)
    return [
        text(left + (index + 0.5) * step, y, name, "axis", "middle")
        for index, name in enumerate(names)
        if index % every == 0
    ]


def columns(found: Rows) -> Drawing:
    """Upright bars; with several numbers they are stacked."""
    names = found.columns[1:]
    left, top, height = 52.0, 12.0, 230.0
    values = [
        [_numeric(value, name) for value, name in zip(row[1:], names, strict=True)] for row in found.rows
    ]
    most = max(map(sum, values)) or 1.0
    step = (_WIDTH - left) / len(values)
    body = _axis(top, most, height, left)
    for index, (row, stack) in enumerate(zip(found.rows, values, strict=True)):
        tip = f"{label(row[0])}: " + ", ".join(
            f"{found.amount(value)} {name}" for value, name in zip(stack, names, strict=True)
        )
        y = top + height
        for series, value in enumerate(stack):
            tall = value / most * height
            y -= tall
            body.append(rect(left + (index + 0.07) * step, y, step * 0.86, tall, f"f{series}", tip))
    body += _below([_place(row[0]) for row in found.rows], left, step, top + height + 18)
    caption = _legend(names) if len(names) > 1 else ""
    return svg(_WIDTH, top + height + 24, body, ", ".join(found.columns)), caption


def lines(found: Rows) -> Drawing:
    """Curves over the first column: one for each further number, or for each value of a text column."""
    places, series = _series(found)
    left, top, height, bottom = 52.0, 12.0, 230.0, 24.0
    most = max((value for curve in series.values() for value in curve.values()), default=0.0) or 1.0
    step = (_WIDTH - left) / max(len(places), 1)
    body = _axis(top, most, height, left)
    for index, (name, curve) in enumerate(series.items()):
        points = [
            (left + (at + 0.5) * step, top + height - curve[place] / most * height)
            for at, place in enumerate(places)
            if place in curve
        ]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        body.append(f'<polyline points="{drawn}" class="curve c{index}"/>')
        if len(points) <= 80:
            for (x, y), place in zip(points, [one for one in places if one in curve], strict=True):
                tip = f"{name}, {label(place)}: {found.amount(curve[place])}"
                body.append(grouped([circle(x, y, 3.5, f"f{index}")], tip))
    body += _below([_place(place) for place in places], left, step, top + height + 18)
    caption = _legend(list(series)) if len(series) > 1 else ""
    return svg(_WIDTH, top + height + bottom, body, ", ".join(found.columns)), caption


def _series(found: Rows) -> tuple[list[Any], dict[str, dict[Any, float]]]:
    """The places on the horizontal axis in their order, and for each series its values by place."""
    places = list(dict.fromkeys(row[0] for row in found.rows))
    series: dict[str, dict[Any, float]] = {}
    long = len(found.columns) == 3 and all(isinstance(row[1], str) for row in found.rows)
    for row in found.rows:
        pairs = [(row[1], row[2])] if long else list(zip(found.columns[1:], row[1:], strict=True))
        for name, value in pairs:
            if value is not None:
                series.setdefault(name, {})[row[0]] = _numeric(value, found.columns[-1])
    return places, series


def heat(found: Rows) -> Drawing:
    """Cells by row (first column) and column (second), shaded by their value (third)."""
    across = sorted({row[1] for row in found.rows}, key=_sortable)
    down = list(dict.fromkeys(row[0] for row in found.rows))
    values = {
        (row[0], row[1]): _numeric(row[2], found.columns[2]) for row in found.rows if row[2] is not None
    }
    most = max(values.values(), default=0.0) or 1.0
    left, top, tall = 110.0, 22.0, 34.0
    wide = (_WIDTH - left) / len(across)
    body = _below([label(name) for name in across], left, wide, 13)
    for at, name in enumerate(down):
        y = top + at * tall
        body.append(text(left - 10, y + tall / 2 + 4, label(name), "axis", "end"))
        for index, column in enumerate(across):
            x = left + index * wide
            value = values.get((name, column))
            if value is None:
                body.append(rect(x + 1, y + 1, wide - 2, tall - 2, "empty", extra='rx="3"'))
                continue
            shade = 0.04 + 0.96 * max(value, 0.0) / most
            tip = f"{label(name)}, {label(column)}: {found.amount(value)}"
            style = f'rx="3" style="fill-opacity:{shade:.3f}"'
            body.append(rect(x + 1, y + 1, wide - 2, tall - 2, "heat", tip, style))
            if wide >= 34:
                kind = "cell strong" if shade > 0.55 else "cell"
                shown = short(round(value) if most >= 10 else value)
                body.append(text(x + wide / 2, y + tall / 2 + 4, shown, kind, "middle"))
    return svg(_WIDTH, top + tall * len(down) + 2, body, ", ".join(found.columns)), ""


def _sortable(value: object) -> tuple[str, Any]:
    """Orders values of one type, and None before them."""
    return ("", 0) if value is None else (type(value).__name__, value)


def bars(found: Rows) -> Drawing:
    """Lying bars: a name, numbers (each with a scale of its own), and at the end texts that stand beside."""
    numeric = [
        index
        for index in range(1, len(found.columns))
        if all(row[index] is None or isinstance(row[index], int | float | Decimal) for row in found.rows)
    ]
    if not numeric:
        raise ValueError("no column after the first is a number")
    beside = [index for index in range(1, len(found.columns)) if index not in numeric]
    left, top = 210.0, 6.0
    right = 190.0 if beside else 70.0
    tall, step = 14.0, 16.0 * len(numeric) + 10.0
    most = {
        index: max(_numeric(row[index], found.columns[index]) for row in found.rows) or 1.0
        for index in numeric
    }
    body = []
    for at, row in enumerate(found.rows):
        y = top + at * step
        body.append(text(left - 12, y + step / 2, label(row[0]), "name", "end"))
        for order, index in enumerate(numeric):
            value = _numeric(row[index], found.columns[index])
            wide = value / most[index] * (_WIDTH - left - right)
            tip = f"{label(row[0])}: {found.columns[index]} {found.amount(value)}"
            body.append(rect(left, y + order * 16, wide, tall, f"f{order}", tip, 'rx="2"'))
            body.append(text(left + wide + 6, y + order * 16 + 11.5, number(value), "value"))
        if beside:
            words = " · ".join(label(row[index]) for index in beside)
            body.append(text(_WIDTH, y + step / 2, words, "axis", "end"))
    names = [found.columns[index] for index in numeric]
    return svg(_WIDTH, top + step * len(found.rows), body, ", ".join(found.columns)), _legend(names)


def ranges(found: Rows) -> Drawing:
    """A line for each row: a name, three rising numbers, and a text beside. The scale is a square root, which
    shows differences of small values and keeps great ones on the page.
    """
    if len(found.columns) < 4:
        raise ValueError("it takes a name, three numbers and perhaps a text")
    left, right, top, step = 210.0, 190.0 if len(found.columns) > 4 else 20.0, 28.0, 27.0
    spreads = [
        [_numeric(value, name) for value, name in zip(row[1:4], found.columns[1:4], strict=True)]
        for row in found.rows
    ]
    low, high = min(map(min, spreads)), max(map(max, spreads))

    def position(value: float) -> float:
        return left + (_WIDTH - left - right) * sqrt((value - low) / ((high - low) or 1.0))

    bottom = top + step * len(spreads)
    body = []
    shown = -1e9
    for tick in ticks(high, 12):
        # Small values lie far apart, great ones would overlap.
        if tick >= low and position(tick) - shown >= 52:
            shown = position(tick)
            body.append(line(shown, top - 6, shown, bottom, "grid"))
            body.append(text(shown, top - 11, f"{short(tick)} {found.unit}".rstrip(), "axis", "middle"))
    for at, (row, spread) in enumerate(zip(found.rows, spreads, strict=True)):
        y = top + step * (at + 0.5)
        first, middle, last = map(position, spread)
        tip = f"{label(row[0])}: " + ", ".join(
            f"{name} {found.amount(value)}" for name, value in zip(found.columns[1:4], spread, strict=True)
        )
        marks = [
            line(middle, y, last, y, "tail"),
            line(first, y, middle, y, "most"),
            circle(first, y, 5, "f0"),
            circle(middle, y, 5, "f1"),
            circle(last, y, 4, "f2"),
        ]
        body += [text(left - 14, y + 4, label(row[0]), "name", "end"), grouped(marks, tip)]
        if len(row) > 4:
            body.append(text(_WIDTH, y + 4, label(row[4]), "axis", "end"))
    return svg(_WIDTH, bottom + 4, body, ", ".join(found.columns)), _legend(found.columns[1:4])


def table(found: Rows) -> Drawing:
    """A table."""
    kinds = [
        ' class="number"' if all(isinstance(row[index], int | float | Decimal) for row in found.rows) else ""
        for index in range(len(found.columns))
    ]
    heads = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(found.columns, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(label(value))}</td>" for value, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in found.rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>", ""


KINDS: dict[str, Callable[[Rows], Drawing]] = {
    "columns": columns,
    "lines": lines,
    "heat": heat,
    "bars": bars,
    "ranges": ranges,
    "table": table,
}


def draw(kind: str, found: Rows) -> Drawing:
    """Draws the rows. Raises ValueError if they do not fit the kind."""
    if not found.rows:
        return '<p class="soft">There are no rows.</p>', ""
    if kind != "table" and len(found.columns) < (3 if kind == "heat" else 2):
        raise ValueError(f"a chart of kind {kind} needs more columns than {', '.join(found.columns)}")
    return KINDS[kind](found)
