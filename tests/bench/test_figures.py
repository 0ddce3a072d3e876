"""The tables and plots of `make bench-broker`."""

from __future__ import annotations

from xml.etree import ElementTree

import plots
from figures import BETTER_KAFKA, Board, Curve, Figure, Goal, curve_table, figures_table
from servers import BARE, KAFKA_3_9, KAFKA_4_1, OURS

SVG = "{http://www.w3.org/2000/svg}"


def filled(figure: Figure, **values: list[float]) -> Figure:
    names = {"ours": OURS, "old": KAFKA_3_9, "new": KAFKA_4_1, "bare": BARE}
    for name, rounds in values.items():
        for number, value in enumerate(rounds):
            figure.add(names[name], number, value)
    return figure


def dots(svg: str) -> list[tuple[float, float]]:
    """The positions of a drawing's dots, without those of its legend."""
    circles = ElementTree.fromstring(svg).iter(f"{SVG}circle")
    return [
        (x, y)
        for circle in circles
        if (x := float(circle.attrib["cx"])) and (y := float(circle.attrib["cy"])) > 50
    ]


# Broken if it failed: our ratios would look better than they are.
def test_a_ratio_is_to_the_better_kafka_of_each_round() -> None:
    speed = filled(Figure("speed", "MB/s"), ours=[20, 30, 40], old=[10, 5, 10], new=[5, 10, 20])
    assert speed.ratio(BETTER_KAFKA) == (2, 2, 3)
    time = filled(
        Figure("time", "s", more_is_better=False), ours=[20, 30, 40], old=[10, 5, 10], new=[5, 10, 20]
    )
    assert time.ratio(BETTER_KAFKA) == (4, 4, 6)
    assert speed.ratio(BARE) is None


# Broken if it failed: values of different rounds would be compared.
def test_a_round_that_one_server_missed_has_no_ratio() -> None:
    speed = filled(Figure("speed", "MB/s"), ours=[10, 20, 30], old=[10, 10, 10])
    del speed.values[OURS][0]
    assert speed.ratio(BETTER_KAFKA) == (2, 2.5, 3)


# Broken if it failed: a missed goal would not be reported.
def test_a_goal_is_judged_by_the_median() -> None:
    goals = (Goal(2, BETTER_KAFKA), Goal(0.6, BARE), Goal(25))
    speed = filled(Figure("speed", "MB/s", goals), ours=[10, 20, 90], old=[10, 10, 10])
    assert speed.goal_cell() == "≥ 2x Kafka; ≥ 0.6x bare (not measured); ≥ 25 MB/s **missed**"
    time = filled(Figure("time", "s", (Goal(0.5, BETTER_KAFKA),), more_is_better=False), ours=[6], old=[10])
    assert time.goal_cell() == "≤ 0.5x Kafka **missed**"


# Broken if it failed: the peak of memory would be reported too low.
def test_the_highest_of_a_round_is_kept() -> None:
    memory = Figure("memory", "MB", more_is_better=False)
    for value in (5, 7, 6):
        memory.add_highest(OURS, 0, value)
    assert memory.cell(OURS) == "7.00"


# Broken if it failed: a failure would look like a missing value.
def test_a_failure_is_in_the_table_and_its_reason_is_listed_once() -> None:
    board = Board("tmpfs", 1, 1)
    for what in ("speed", "more speed"):
        figure = board.figure(filled(Figure(what, "MB/s", scale=0.5), ours=[20]))
        figure.failed[KAFKA_3_9] = "it ended"
    assert figures_table(board.figures)[2] == "| speed | MB/s | 10.0 | failed |  |  |  |"
    assert board.failures() == ["Apache Kafka 3.9.1: speed: it ended"]


# Broken if it failed: a plot would show wrong ratios.
def test_ratios_are_drawn_at_their_positions() -> None:
    goals = (Goal(2, BETTER_KAFKA),)
    twice = filled(Figure("<twice>", "MB/s", goals), ours=[20], old=[10], bare=[40])
    half = filled(Figure("half", "MB/s"), ours=[5], old=[10])
    # A CPU time of 0 cannot be on a logarithmic scale.
    none = filled(Figure("none", "s"), ours=[0], old=[10])
    svg = plots.ratios("ratios", [twice, half, none])
    assert svg is not None
    (kafka, _), (bare, _), (lower, _) = dots(svg)
    assert bare == lower < kafka
    assert plots.ratios("nothing", [none]) is None


# Broken if it failed: a run of over an hour would end without its plots.
def test_curves_are_drawn_also_with_missing_values() -> None:
    curve = Curve("load", "latency", "% of its own peak", "µs", more_is_better=False, linear=True)
    filled(curve.at(10), ours=[100, 120], old=[200, 200])
    filled(curve.at(90), ours=[1000], old=[0])
    empty = Curve("load", "nothing", "partitions", "MB/s")
    assert curve.at(10) is curve.points[10]
    drawn = dots(plots.curves("load", [curve, empty]))
    # Two of ours, one of Kafka's, and one ratio: there is no ratio to 0.
    assert len(drawn) == 4
    (first, lower), (second, upper), *_ = drawn
    assert first < second
    assert lower > upper
    assert curve_table(curve)[2] == "| 10 | 110 (100–120) | 200 | 0.55 (0.50–0.60) |  |"
    one = Curve("batch", "speed", "KiB", "MB/s")
    filled(one.at(16), ours=[10], old=[10])
    assert len(dots(plots.curves("one step", [one]))) == 3
