"""What a configuration says, as data: the tables of its TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Watermark:
    """How late a row may be: `column` has its time, `delay` is an interval as Spark writes it (`2 hours`)."""

    column: str
    delay: str


@dataclass(frozen=True)
class Source:
    """`[source.NAME]`"""

    name: str
    format: str
    stream: bool
    options: Mapping[str, str]
    schema: str | None
    select: tuple[str, ...]
    watermark: Watermark | None
    deduplicate: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """`[table.NAME]`"""

    name: str
    sql: str
    watermark: Watermark | None
    deduplicate: tuple[str, ...]


@dataclass(frozen=True)
class Sink:
    """`[sink.NAME]`; `keys`, `order` and `deleted` are those of a table by key."""

    name: str
    source: str
    """`from`: a table or a source."""
    format: str
    mode: str
    options: Mapping[str, str]
    partition_by: tuple[str, ...]
    keys: tuple[str, ...] = ()
    order: str | None = None
    deleted: str | None = None


@dataclass(frozen=True)
class Figure:
    """`[[report.figure]]`: one value and a few words."""

    text: str
    sql: str


@dataclass(frozen=True)
class Chart:
    """`[[report.chart]]`"""

    title: str
    text: str
    kind: str
    unit: str
    sql: str


@dataclass(frozen=True)
class Check:
    """`[[report.check]]`: a query that finds what is wrong, and so must find no row."""

    name: str
    sql: str


@dataclass(frozen=True)
class Report:
    """`[report]`"""

    title: str
    lead: str
    path: Path
    figures: tuple[Figure, ...]
    charts: tuple[Chart, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Pipeline:
    """The whole file."""

    file: Path
    name: str
    checkpoints: Path
    trigger_ms: int | None
    """None: all that is there now, and then the end."""
    spark: Mapping[str, str]
    sources: tuple[Source, ...]
    tables: tuple[Table, ...]
    sinks: tuple[Sink, ...]
    report: Report | None

    def where(self, table: str, key: str) -> str:
        """How messages name a place in the file."""
        return f"{self.file}: [{table}] {key}"
