"""Draws a run's figures as SVG files: dots with their spread, and curves. Without a plotting library, which
would be the largest package that the checks install.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from math import ceil, floor, log10

from figures import BETTER_KAFKA, SERVERS, Curve, Figure, Spread
from servers import BARE, KAFKA_3_9, KAFKA_4_1, OURS

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = {
    OURS: "#0072b2",
    KAFKA_3_9: "#d55e00",
    KAFKA_4_1: "#e69f00",
    BARE: "#7f7f7f",
    BETTER_KAFKA: "#d55e00",
}
INK, FAINT = "#222222", "#dddddd"
PANEL_WIDTH, PANEL_HEIGHT = 360.0, 220.0

Scale = Callable[[float], float]


def drawing(width: float, height: float, body: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def words(x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def stroke(points: Sequence[tuple[float, float]], colour: str, width: float = 1.0, dashes: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'


def dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def log_scale(low: float, high: float, start: float, end: float) -> Scale:
    """Maps values from `low` to `high`, both above zero, to positions from `start` to `end`,
    logarithmically.
    """
    if low == high:
        low, high = low / 2, high * 2
    size = log10(high) - log10(low)
    return lambda value: start + (log10(value) - log10(low)) / size * (end - start)


def linear_scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (value - low) / ((high - low) or 1) * (end - start)


def marks(low: float, high: float) -> list[float]:
    """The marks of a logarithmic scale that covers `low` to `high`.

    They are 1, 2 and 5 times powers of ten, or only the powers when these would be too many.
    """
    powers = range(floor(log10(low)) - 1, ceil(log10(high)) + 2)
    steps = (1, 2, 5) if high / low < 300 else (1,)
    all_marks = [step * 10.0**power for power in powers for step in steps]
    below = max(mark for mark in all_marks if mark <= low)
    above = min(mark for mark in all_marks if mark >= high)
    return [mark for mark in all_marks if below <= mark <= above]


def mark_text(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def on_log(found: Spread | None) -> Spread | None:
    """The spread if it can be on a logarithmic scale. A CPU time may be 0, because a clock tick is longer."""
    return found if found and found[0] > 0 else None


def legend(colours: Mapping[str, str], x: float, y: float) -> list[str]:
    body = []
    for name, colour in colours.items():
        body += [dot(x, y - 4, colour), words(x + 8, y, name)]
        x += 30 + 6.5 * len(name)
    return body


def ratios(
    title: str, figures: Sequence[Figure], others: tuple[str, str] = (BETTER_KAFKA, BARE)
) -> str | None:
    """Our ratios to two others, a peer and a limit: medians as dots, minimum to maximum as bars, goals as
    ticks.
    """
    colours = dict(zip(others, (COLOURS[BETTER_KAFKA], COLOURS[BARE]), strict=True))
    rows = [figure for figure in figures if on_log(figure.ratio(others[0]))]
    if not rows:
        return None
    left, top, row_height, width = 400.0, 64.0, 26.0, 480.0
    bottom = top + row_height * len(rows)
    spreads = [found for figure in rows for to in others if (found := on_log(figure.ratio(to)))]
    bounds = [goal.bound for figure in rows for goal in figure.goals if goal.to]
    axis = marks(min([low for low, _, _ in spreads] + bounds), max([high for _, _, high in spreads] + bounds))
    scale = log_scale(axis[0], axis[-1], left, left + width)
    body = [words(10, 20, title), *legend(colours, left, 42)]
    for mark in axis:
        x = scale(mark)
        body += [
            stroke([(x, top), (x, bottom)], INK if mark == 1 else FAINT),
            words(x, bottom + 16, f"{mark:g}", anchor="middle"),
        ]
    for number, figure in enumerate(rows):
        middle = top + row_height * (number + 0.5)
        body.append(
            words(left - 12, middle + 4, figure.what + ("" if figure.more_is_better else " ↓"), anchor="end")
        )
        for to, y in zip(others, (middle - 4, middle + 4), strict=True):
            if found := on_log(figure.ratio(to)):
                low, median, high = map(scale, found)
                body += [stroke([(low, y), (high, y)], colours[to], 2), dot(median, y, colours[to])]
            for goal in figure.goals:
                if goal.to == to:
                    x = scale(goal.bound)
                    body.append(stroke([(x, y - 5), (x, y + 5)], colours[to], 2))
    body.append(
        words(
            left, bottom + 36, "ours ÷ theirs: minimum, median and maximum; ticks are goals; ↓ less is better"
        )
    )
    return drawing(left + width + 30, bottom + 48, body)


def panel(
    x: float, title: str, curve: Curve, lines: dict[str, dict[float, Spread]], baseline: float | None = None
) -> list[str]:
    """Curves in one frame, on a logarithmic scale."""
    left, top = x + 60, 60.0
    right, bottom = x + PANEL_WIDTH, top + PANEL_HEIGHT
    spreads = [found for points in lines.values() for found in points.values()]
    body = [words(left, top - 10, title)]
    if not spreads:
        return [*body, words(left, top + 20, "not measured")]
    values = [value for low, _, high in spreads for value in (low, high)]
    axis = marks(
        min([*values, *([baseline] if baseline else [])]), max([*values, *([baseline] if baseline else [])])
    )
    scale_y = log_scale(axis[0], axis[-1], bottom, top)
    steps = sorted(curve.points)
    scale_x = (linear_scale if curve.linear else log_scale)(steps[0], steps[-1], left, right)
    for mark in axis:
        y = scale_y(mark)
        body += [
            stroke([(left, y), (right, y)], INK if mark == baseline else FAINT),
            words(left - 6, y + 4, mark_text(mark), anchor="end"),
        ]
    for step in steps:
        body.append(words(scale_x(step), bottom + 16, mark_text(step), anchor="middle"))
    body.append(words((left + right) / 2, bottom + 34, curve.along, anchor="middle"))
    for name, points in lines.items():
        body += curve_marks(COLOURS[name], [(scale_x(step), points[step]) for step in points], scale_y)
    return body


def curve_marks(colour: str, points: list[tuple[float, Spread]], scale_y: Scale) -> list[str]:
    """A line through the medians, and the spread of each."""
    body = [stroke([(x, scale_y(median)) for x, (_, median, _) in points], colour, 1.5)]
    for x, (low, median, high) in points:
        body += [stroke([(x, scale_y(low)), (x, scale_y(high))], colour, 1), dot(x, scale_y(median), colour)]
    return body


def curves(title: str, several: Sequence[Curve]) -> str:
    """A row of two panels for each curve: every server's figures, and our ratios to the better Kafka and
    the bare loop.
    """
    gap = 60.0
    width, row = 2 * PANEL_WIDTH + gap + 30, PANEL_HEIGHT + 120
    body = [
        words(10, 20, title),
        *legend({name: COLOURS[name] for name in SERVERS}, 10 + 7 * len(title) + 30, 20),
    ]
    for number, curve in enumerate(several):
        servers = {server: spreads_of(curve, partial(Figure.spread, server=server)) for server in SERVERS}
        others = {to: spreads_of(curve, partial(Figure.ratio, other=to)) for to in (BETTER_KAFKA, BARE)}
        body += [
            f'<g transform="translate(0 {number * row:g})">',
            *panel(0, f"{curve.what}, {curve.unit}", curve, {name: at for name, at in servers.items() if at}),
            *panel(PANEL_WIDTH + gap, "ours ÷ better Kafka, ours ÷ bare loop", curve, others, 1.0),
            "</g>",
        ]
    return drawing(width, len(several) * row, body)


def spreads_of(curve: Curve, spread: Callable[[Figure], Spread | None]) -> dict[float, Spread]:
    return {x: found for x, figure in curve.points.items() if (found := on_log(spread(figure)))}
