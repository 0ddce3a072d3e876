"""The report: figures, charts and checks by SQL over what the sinks have, as one self-contained HTML page."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_logcore.pipeline._charts import Rows, draw, label
from pyspark_logcore.pipeline._config import ConfigError
from pyspark_logcore.pipeline._graph import define, define_sinks, refused
from pyspark_logcore.pipeline._model import Chart, Check, Figure, Pipeline, Report
from pyspark_logcore.pipeline._svg import number
from pyspark_logcore.pipeline._watch import Progress

_ROWS_MAX = 2_000
"""Rows that one chart takes: a page with more would be slow, and say less."""


@dataclass(frozen=True)
class Checked:
    """A check's result: how many wrong rows it found, and the first as text."""

    name: str
    wrong: int
    first: str


def write(
    spark: SparkSession,
    pipeline: Pipeline,
    report: Report,
    queries: Sequence[Progress],
    doing: Callable[[str], None],
) -> list[Checked]:
    """Writes the page and returns the checks. `doing` is told what comes next. Raises ConfigError for SQL
    that Spark refuses and rows that do not fit their chart.
    """
    doing("the sinks")
    frames = define(spark, pipeline, stream=False)
    for table in pipeline.tables:
        # Several checks may compare it; those that none reads cost nothing.
        frames[table.name].persist()
    with refused(pipeline, "report", "path"):
        define_sinks(spark, pipeline)
    tiles = []
    for at, figure in enumerate(report.figures, 1):
        doing(figure.text)
        tiles.append(_tile(spark, pipeline, at, figure))
    sections = []
    for at, chart in enumerate(report.charts, 1):
        doing(chart.title)
        sections.append(_section(spark, pipeline, at, chart))
    checked = []
    for at, check in enumerate(report.checks, 1):
        doing(check.name)
        checked.append(_check(spark, pipeline, at, check))
    page = _page(report, "".join(tiles), "".join(sections), _making(queries, checked))
    report.path.parent.mkdir(parents=True, exist_ok=True)
    new = report.path.with_name(f".{report.path.name}.new")
    new.write_text(page, encoding="utf-8")
    new.replace(report.path)
    return checked


def _rows(spark: SparkSession, pipeline: Pipeline, place: str, sql: str, unit: str = "") -> Rows:
    with refused(pipeline, place, "sql"):
        frame = spark.sql(sql)
        rows = [tuple(row) for row in frame.limit(_ROWS_MAX + 1).collect()]
    if len(rows) > _ROWS_MAX:
        raise ConfigError([f"{pipeline.where(place, 'sql')}: gives more than {_ROWS_MAX:,} rows"])
    return Rows(tuple(frame.columns), rows, unit)


def _tile(spark: SparkSession, pipeline: Pipeline, at: int, figure: Figure) -> str:
    found = _rows(spark, pipeline, f"report.figure {at}", figure.sql)
    value = label(found.rows[0][0]) if found.rows else "–"
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(figure.text)}</span></div>'


def _section(spark: SparkSession, pipeline: Pipeline, at: int, chart: Chart) -> str:
    place = f"report.chart {at}"
    found = _rows(spark, pipeline, place, chart.sql, chart.unit)
    try:
        drawing, caption = draw(chart.kind, found)
    except ValueError as error:
        raise ConfigError([f"{pipeline.where(place, 'sql')}: {error}"]) from None
    words = f"<p>{escape(chart.text)}</p>\n" if chart.text else ""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f"<section>\n<h2>{escape(chart.title)}</h2>\n{words}"
        f'<figure class="panel">{drawing}{below}</figure>\n</section>\n'
    )


def _check(spark: SparkSession, pipeline: Pipeline, at: int, check: Check) -> Checked:
    with refused(pipeline, f"report.check {at}", "sql"):
        wrong = spark.sql(check.sql).cache()
        count = wrong.count()
        first = wrong.first() if count else None
        wrong.unpersist()
    shown = "" if first is None else ", ".join(f"{name} {label(v)}" for name, v in first.asDict().items())
    return Checked(check.name, count, shown)


def _page(report: Report, tiles: str, sections: str, making: str) -> str:
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    lead = f'<p class="lead">{escape(report.lead)}</p>\n' if report.lead else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<h1>{escape(report.title)}</h1>\n{lead}<div class="tiles">{tiles}</div>\n</header>\n'
        f"{sections}{making}</main>\n</body>\n</html>\n"
    )


def _making(queries: Sequence[Progress], checked: Sequence[Checked]) -> str:
    heads = ("Query", "micro-batches", "rows", "time", "rows/s", "MB", "lag", "too late")
    lines = "".join(
        "<tr>"
        + "".join(f"<td{' class=number' if at else ''}>{escape(cell)}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in map(_cells, queries)
    )
    head = "".join(f"<th{' class=number' if at else ''}>{name}</th>" for at, name in enumerate(heads))
    verdicts = "".join(f"<p>{_verdict(one)}</p>\n" for one in checked)
    now = datetime.now(UTC)
    return (
        f"<section>\n<h2>How it was made</h2>\n{verdicts}"
        f'<div class="panel"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>\n'
        f"</section>\n<footer>The last run of each query, at {now:%Y-%m-%d %H:%M} UTC on "
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}.</footer>\n"
    )


def _cells(query: Progress) -> tuple[str, ...]:
    rate = query.rows / query.seconds if query.seconds else 0.0
    return (
        query.name,
        number(query.batches),
        number(query.rows),
        f"{query.seconds:.1f} s",
        f"{rate:,.0f}",
        "–" if query.bytes is None else f"{query.bytes / 1e6:,.1f}",
        "–" if query.lag is None else number(query.lag),
        number(query.late),
    )


def _verdict(one: Checked) -> str:
    if one.wrong:
        return (
            f'<span class="wrong">✗ {escape(one.name)}</span>: {one.wrong:,} rows are wrong, the first: '
            f"{escape(one.first)}"
        )
    return f'<span class="verdict">✓ {escape(one.name)}</span>'
