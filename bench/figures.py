"""The figures of a run: one of each server for each round, curves of figures, and both as tables with
ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from servers import BARE, KAFKA_3_9, KAFKA_4_1, OURS

SERVERS = (OURS, KAFKA_3_9, KAFKA_4_1, BARE)
BETTER_KAFKA = "better Kafka"

Spread = tuple[float, float, float]


def spread(values: Iterable[float]) -> Spread | None:
    """Minimum, median and maximum."""
    several = list(values)
    return (min(several), statistics.median(several), max(several)) if several else None


def shown(value: float) -> str:
    digits = next((digits for digits, below in ((3, 0.1), (2, 10), (1, 100)) if abs(value) < below), 0)
    return f"{value:.{digits}f}"


def shown_spread(values: Spread | None) -> str:
    if values is None:
        return ""
    low, middle, high = values
    if low == high:
        return shown(middle)
    return f"{shown(middle)} ({shown(low)}–{shown(high)})"


@dataclass(frozen=True)
class Goal:
    """A bound for our ratio to a server's figure, or for our figure itself when `to` is None."""

    bound: float
    to: str | None = None

    def text(self, more_is_better: bool, unit: str) -> str:
        sign = "≥" if more_is_better else "≤"
        if self.to is None:
            return f"{sign} {self.bound:g} {unit}"
        return f"{sign} {self.bound:g}x {'Kafka' if self.to == BETTER_KAFKA else 'bare'}"


@dataclass
class Figure:
    """One figure of each server, by round."""

    what: str
    unit: str
    goals: tuple[Goal, ...] = ()
    more_is_better: bool = True
    scale: float = 1.0
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, server: str, number: int, value: float) -> None:
        self.values.setdefault(server, {})[number] = value * self.scale

    def add_highest(self, server: str, number: int, value: float) -> None:
        """As `add`, if the value is the highest of the round so far."""
        before = self.values.get(server, {}).get(number)
        if before is None or value * self.scale > before:
            self.add(server, number, value)

    def of(self, server: str) -> dict[int, float]:
        """The values by round. For the better Kafka, the better value of each round."""
        if server != BETTER_KAFKA:
            return self.values.get(server, {})
        best = max if self.more_is_better else min
        kafkas = [self.values.get(name, {}) for name in (KAFKA_3_9, KAFKA_4_1)]
        rounds = set().union(*kafkas)
        return {number: best(kafka[number] for kafka in kafkas if number in kafka) for number in rounds}

    def spread(self, server: str) -> Spread | None:
        return spread(self.of(server).values())

    def ratio(self, other: str) -> Spread | None:
        """Our value divided by another server's, round by round."""
        theirs = self.of(other)
        return spread(value / theirs[number] for number, value in self.of(OURS).items() if theirs.get(number))

    def cell(self, server: str) -> str:
        if server in self.failed:
            return "failed"
        return shown_spread(self.spread(server))

    def reached(self, goal: Goal) -> bool | None:
        """Whether the median reaches the goal; None when it was not measured."""
        measured = self.spread(OURS) if goal.to is None else self.ratio(goal.to)
        if measured is None:
            return None
        return measured[1] >= goal.bound if self.more_is_better else measured[1] <= goal.bound

    @property
    def is_missed(self) -> bool:
        """Whether the figure misses a goal."""
        return any(self.reached(goal) is False for goal in self.goals)

    def goal_cell(self) -> str:
        words = {True: "", False: " **missed**", None: " (not measured)"}
        return "; ".join(
            goal.text(self.more_is_better, self.unit) + words[self.reached(goal)] for goal in self.goals
        )


@dataclass
class Curve:
    """A figure for each number of connections, partitions or bytes, or (`linear`) for each share of a peak.

    Curves with the same name are drawn together.
    """

    name: str
    what: str
    along: str
    unit: str
    more_is_better: bool = True
    scale: float = 1.0
    linear: bool = False
    goals: tuple[Goal, ...] = ()
    points: dict[float, Figure] = field(default_factory=dict)

    def at(self, x: float) -> Figure:
        figure = Figure(self.what, self.unit, self.goals, self.more_is_better, self.scale)
        return self.points.setdefault(x, figure)


@dataclass
class Board:
    """All figures and curves of one medium."""

    medium: str
    rounds: int
    sweep_rounds: int
    figures: list[Figure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)

    def figure(self, figure: Figure) -> Figure:
        self.figures.append(figure)
        return figure

    def curve(self, curve: Curve) -> Curve:
        self.curves.append(curve)
        return curve

    def failures(self) -> list[str]:
        """Why a server failed, and at which figure; the same reason of a server once."""
        points = [
            (f"{curve.what}, {curve.along} {x:g}", figure)
            for curve in self.curves
            for x, figure in curve.points.items()
        ]
        named = [(figure.what, figure) for figure in self.figures] + points
        first: dict[tuple[str, str], str] = {}
        for what, figure in named:
            for server, reason in figure.failed.items():
                first.setdefault((server, reason), what)
        return [f"{server}: {what}: {reason}" for (server, reason), what in first.items()]


def present(figures: Iterable[Figure]) -> list[str]:
    """The servers that have a value or a failure in one of the figures."""
    several = [*figures]
    return [
        server
        for server in SERVERS
        if any(server in figure.values or server in figure.failed for figure in several)
    ]


def cells(figure: Figure, servers: list[str]) -> list[str]:
    ratios = (figure.ratio(BETTER_KAFKA), figure.ratio(BARE))
    return [*map(figure.cell, servers), *map(shown_spread, ratios)]


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(row) + " |" for row in lines]


RATIOS = ["ours ÷ better Kafka", "ours ÷ bare"]


def figures_table(figures: list[Figure]) -> list[str]:
    servers = present(figures)
    rows = [[f.what, f.unit, *cells(f, servers), f.goal_cell()] for f in figures]
    return table(["what", "unit", *servers, *RATIOS, "goal"], rows)


def curve_table(curve: Curve) -> list[str]:
    servers = present(curve.points.values())
    rows = [[f"{x:g}", *cells(figure, servers)] for x, figure in curve.points.items()]
    return table([curve.along, *servers, *RATIOS], rows)
