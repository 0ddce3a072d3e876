"""Two sides that are measured in alternating order, ours and Apache's, and their figures as one table."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from figures import Figure, Goal, shown, shown_spread, table
from program import RESULTS, machine, revision
from scenarios import reason_of, say
from servers import ROOT

WARM_UPS = 2


class Named(Protocol):
    """One side."""

    name: str


Side = TypeVar("Side", bound=Named)


@dataclass
class Run(Generic[Side]):
    """The two sides, and their figures."""

    sides: list[Side]
    rounds: int
    quick: bool
    figures: dict[str, Figure] = field(default_factory=dict)

    def figure(
        self, what: str, unit: str, goals: tuple[Goal, ...] = (), more_is_better: bool = True
    ) -> Figure:
        known = self.figures.get(what)
        if known is None:
            known = self.figures[what] = Figure(what, unit, goals, more_is_better)
        return known

    def count(self, whole: int) -> int:
        return max(whole // 50, 20) if self.quick else whole

    def each(self, what: str, measure: Callable[[Side, int], None], warm_ups: int = WARM_UPS) -> None:
        """Measures every side in every round, in alternating order. Rounds below 0 do not count."""
        for number in range(-(0 if self.quick else warm_ups), self.rounds):
            say(f"{what}: round {number + 1} of {self.rounds}")
            for side in self.sides if number % 2 == 0 else self.sides[::-1]:
                try:
                    measure(side, number)
                except Exception as error:  # the other side is still measured
                    say(f"{side.name} failed: {reason_of(error)}")
                    self.figure(what, "").failed[side.name] = reason_of(error)

    def keep(self, figure: Figure, side: Side, number: int, value: float) -> None:
        if number >= 0:
            figure.add(side.name, number, value)


def goals_of(figure: Figure, short: str) -> str:
    """The goals, and whether they are missed. `short` stands for the other side."""
    words = {True: "", False: " **missed**", None: " (not measured)"}
    cells = []
    for goal in figure.goals:
        sign = "≥" if figure.more_is_better else "≤"
        bound = f"{goal.bound:g} {figure.unit}" if goal.to is None else f"{goal.bound:g}x {short}"
        cells.append(f"{sign} {bound}{words[figure.reached(goal)]}")
    return "; ".join(cells)


def section(title: str, figures: Sequence[Figure], ours: str, other: str, short: str) -> list[str]:
    """The lines of one table, with the failures below it."""
    heads = ["what", "unit", ours, other, f"ours ÷ {short}", "goal"]
    rows = [
        [f.what, f.unit, f.cell(ours), f.cell(other), shown_spread(f.ratio(other)), goals_of(f, short)]
        for f in figures
        if f.values
    ]
    failures = [f"- {name}: {f.what}: {reason}" for f in figures for name, reason in f.failed.items()]
    return ["", f"## {title}", "", *table(heads, rows), *(["", "Failed:", "", *failures] if failures else [])]


def as_json(figures: list[Figure]) -> str:
    rows = [
        {"what": f.what, "unit": f.unit, "values": f.values, "failed": f.failed, "missed": f.is_missed}
        for f in figures
    ]
    return json.dumps({"machine": machine(), "revision": revision(), "figures": rows}, indent=1) + "\n"


@dataclass
class Tables:
    """The tables of a program, and the directory for its servers' data."""

    directory: Path
    lines: list[str]
    ours: str
    figures: list[Figure] = field(default_factory=list)

    def add(self, title: str, other: str, figures: list[Figure]) -> None:
        """Adds the table of these figures, of ours beside the other."""
        self.figures += figures
        self.lines += section(title, figures, self.ours, other, "Kafka")


@contextmanager
def report(options: argparse.Namespace, head: list[str], ours: str) -> Iterator[Tables]:
    """Writes what was measured, also after a failure: the tables below `head` to bench/results, and the
    figures of all rounds to the file of `--json`.
    """
    begun = time.monotonic()
    (ROOT / "build").mkdir(exist_ok=True)
    tables = Tables(Path(tempfile.mkdtemp(prefix="logcore-bench-", dir=options.directory)), head, ours)
    try:
        yield tables
    finally:
        shutil.rmtree(tables.directory, ignore_errors=True)
        text = "\n".join(tables.lines) + "\n"
        (RESULTS / f"{options.results}.md").write_text(text)
        if options.json:
            options.json.write_text(as_json(tables.figures))
    print(text)
    say(f"took {shown((time.monotonic() - begun) / 60)} minutes")
