"""What a pipeline shows: charts, progress, and causes of failures in one line. Without Spark.

Broken if they failed: a report would show other values than the query gave, or a user would see a stack.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from pyspark_logcore.pipeline._causes import in_text
from pyspark_logcore.pipeline._charts import KINDS, Rows, draw
from pyspark_logcore.pipeline._config import CHARTS
from pyspark_logcore.pipeline._svg import number, short, ticks
from pyspark_logcore.pipeline._watch import Progress, lag_of

DAYS = [(date(2013, 1, day), 10 * day, day) for day in (1, 2, 4)]


def shapes(drawing: str, tag: str) -> list[ET.Element]:
    return ET.fromstring(drawing).findall(f".//{tag}")


def test_every_kind_that_a_file_may_name_is_drawn() -> None:
    assert set(CHARTS) == set(KINDS)


def test_columns_are_stacked_to_scale() -> None:
    drawing, caption = draw("columns", Rows(("day", "flown", "cancelled"), DAYS))
    rects = shapes(drawing, "rect")
    heights = [float(one.attrib["height"]) for one in rects]
    assert [round(height / heights[1], 1) for height in heights] == [10, 1, 20, 2, 40, 4]
    # The highest stack is as high as the drawing allows.
    assert heights[4] + heights[5] == pytest.approx(230)
    assert (rects[0].findtext("title") or "") == "2013-01-01: 10 flown, 1 cancelled"
    assert "flown" in caption
    assert "cancelled" in caption


@pytest.mark.parametrize(
    "found",
    [
        Rows(("x", "a", "b"), [(1, 5.0, 10.0), (2, None, 0.0)]),
        Rows(("x", "name", "value"), [(1, "a", 5.0), (1, "b", 10.0), (2, "b", 0.0)]),
    ],
    ids=["wide", "long"],
)
def test_lines_have_a_curve_for_each_series(found: Rows) -> None:
    curves = shapes(draw("lines", found)[0], "polyline")
    points = [[tuple(map(float, at.split(","))) for at in one.attrib["points"].split()] for one in curves]
    # A value that is not there is no point, and 10 is at the top.
    assert [[y for _, y in curve] for curve in points] == [[127.0], [12.0, 242.0]]
    assert points[0][0][0] == points[1][0][0]


def test_heat_leaves_cells_without_a_value_empty() -> None:
    rows = [("Mon", 2, 4.0), ("Mon", 10, 1.0), ("Tue", 10, None)]
    rects = shapes(draw("heat", Rows(("day", "hour", "delay"), rows, "min"))[0], "rect")
    assert [one.findtext("title") for one in rects] == ["Mon, 2: 4 min", "Mon, 10: 1 min", None, None]
    shades = [re.search(r"fill-opacity:([\d.]+)", one.attrib.get("style", "")) for one in rects]
    assert [shade and float(shade[1]) for shade in shades] == [1.0, 0.28, None, None]


def test_bars_have_a_scale_for_each_number_and_texts_beside() -> None:
    rows = [("one", 10, 0.5, "first"), ("two", 5, 1.0, "second")]
    drawing = draw("bars", Rows(("name", "n", "share", "note"), rows))[0]
    widths = [float(one.attrib["width"]) for one in shapes(drawing, "rect")]
    assert [round(width / widths[0], 3) for width in widths] == [1.0, 0.5, 0.5, 1.0]
    assert {"first", "second"} <= {one.text for one in shapes(drawing, "text")}


def test_ranges_keep_their_order() -> None:
    rows = [("a", -5, 20.0, 200.0, "x"), ("b", 0, 40.0, 100.0, "y")]
    circles = shapes(draw("ranges", Rows(("name", "p50", "p90", "p99", "n"), rows))[0], "circle")
    at = [float(one.attrib["cx"]) for one in circles]
    assert at[0] < at[1] < at[2]
    assert at[0] < at[3] < at[4] < at[5] < at[2]


# Broken if it failed: a value with markup in it would change the page.
def test_values_are_escaped() -> None:
    for kind in CHARTS:
        rows = Rows(("<a>", "b", "c", "d"), [("<script>", 1, 2, 3)])
        assert "<script>" not in "".join(draw(kind, rows))
        assert "<a>" not in "".join(draw(kind, rows))


@pytest.mark.parametrize(
    ("kind", "rows", "problem"),
    [
        ("columns", [("a", "b")], "column y must be a number, not 'b'"),
        ("heat", [("a", 1)], "a chart of kind heat needs more columns than x, y"),
        ("bars", [("a", "b")], "no column after the first is a number"),
        ("ranges", [("a", 1)], "three numbers"),
    ],
)
def test_rows_that_do_not_fit_are_refused(kind: str, rows: list[tuple[Any, ...]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        draw(kind, Rows(("x", "y"), rows))


def test_an_empty_result_says_so() -> None:
    assert "no rows" in draw("lines", Rows(("x", "y"), []))[0]


def test_numbers() -> None:
    assert [short(value) for value in (0, 950, 1500, 2_500_000, 3e9)] == ["0", "950", "1.5k", "2.5M", "3G"]
    assert [number(value) for value in (12_345, 12.0, 12.34, 0.1234)] == ["12,345", "12", "12.3", "0.123"]
    assert ticks(100) == [0, 25, 50, 75, 100]
    assert ticks(0) == [0]


PYTHON = """[STREAM_FAILED] Query [id = 1] terminated: Job aborted due to stage failure
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
ValueError: topic 'absent' is not in /logs

\tat org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)
Caused by: org.apache.spark.SparkException: worker died
"""
JAVA = """[STREAM_FAILED] Query [id = 1] terminated

JVM stacktrace:
org.apache.spark.SparkException: x
\tat a.b(c.java:1)
Caused by: java.io.IOException: cannot write
\tat a.b(c.java:1)
Caused by: java.nio.file.FileSystemException: /full: No space left on device
\tat a.b(c.java:1)
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (PYTHON, "topic 'absent' is not in /logs"),
        (JAVA, "/full: No space left on device"),
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 1, pos 7)\n\n== SQL ==\n",
         "[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 1, pos 7)"),
        ("java.lang.IllegalStateException: no", "no"),
        (PYTHON.replace("ValueError", "cluster.errors.OffsetOutOfRange"), "topic 'absent' is not in /logs"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_cause_is_one_line(text: str, cause: str) -> None:
    assert in_text(text) == cause


@dataclass
class Reported:
    endOffset: str | None
    latestOffset: str | None


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        ({"t": {"0": 5, "1": 7}}, {"t": {"0": 9, "1": 7}}, 4),
        # A partition that is new, and one that was deleted.
        ({"t": {"0": 5}}, {"t": {"1": 3}}, 3),
        ({"t": {"0": 5}}, None, None),
        (3, 5, None),
    ],
)
def test_lag_is_what_was_there_and_not_read(end: object, latest: object, lag: int | None) -> None:
    def text(value: object) -> str | None:
        return None if value is None else json.dumps(value)

    assert lag_of(Reported(text(end), text(latest))) == lag


# Broken if it failed: rows would be counted twice while a query waits.
def test_a_repeated_report_counts_once() -> None:
    done = Progress("q")
    done.add(0, 100, 50.0, 1_500_000, 200)
    done.add(1, 200, 80.0, 3_000_000, 0)
    done.add(1, 0, 0.0, 0, 7)
    assert done.words() == "300 rows, 80 rows/s, 4.5 MB, lag 7"
