"""The configuration of a pipeline: a TOML file, parsed and checked as a whole before Spark starts. Pure, but
for reading the file and the environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pyspark_logcore.pipeline._model import (
    Chart,
    Check,
    Figure,
    Pipeline,
    Report,
    Sink,
    Source,
    Table,
    Watermark,
)

MODES = ("append", "update", "complete")
SOURCE_FORMATS = ("logcore", "parquet", "csv", "json", "delta")
SINK_FORMATS = ("logcore", "parquet", "delta", "console", "table-by-key")
CHARTS = ("columns", "lines", "heat", "bars", "ranges", "table")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TRIGGER = re.compile(r"(\d+)\s*(ms|s|min|h)")
_UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}
_STREAM_NEEDS_SCHEMA = ("parquet", "csv", "json")

T = TypeVar("T")


class ConfigError(Exception):
    """The file cannot be read, or has problems. `problems` has a line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    """Reads and checks a configuration. Raises ConfigError with every problem that it finds."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: not TOML: {error}"]) from None
    pipeline, problems = _Reader(path, environment).read(document)
    if problems:
        raise ConfigError(problems)
    return pipeline


@dataclass
class _Keys:
    """One table of the file. Its keys are taken one by one; those that are left at the end are unknown."""

    where: str
    values: dict[str, Any]
    problem: Callable[[str, str | None, str], None]
    substitute: Callable[[str, str, str], str]
    taken: set[str] = field(default_factory=set)

    def fail(self, key: str | None, words: str) -> None:
        self.problem(self.where, key, words)

    def take(self, key: str) -> Any:
        self.taken.add(key)
        return self.values.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; without a default it must be there."""
        value = self.take(key)
        if value is None:
            if default is None:
                self.fail(key, "is missing")
            return default or ""
        if not isinstance(value, str) or not value.strip():
            self.fail(key, f"must be a text that is not empty, not {value!r}")
            return ""
        return self.substitute(self.where, key, value)

    def optional(self, key: str) -> str | None:
        return self.text(key) if key in self.values else None

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
            self.fail(key, f"must be a list of texts, not {value!r}")
            return ()
        return tuple(self.substitute(self.where, key, one) for one in value)

    def flag(self, key: str) -> bool:
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {value!r}")
        return value is True

    def choice(self, key: str, among: tuple[str, ...]) -> str:
        value = self.text(key, among[0])
        if value and value not in among:
            self.fail(key, f"must be one of {', '.join(among)}, not {value!r}")
            return among[0]
        return value

    def options(self, key: str) -> dict[str, str]:
        """A table of texts, numbers and booleans, as the texts that Spark takes. `a.b = 1` is the option
        `a.b`, with and without quotes.
        """
        found: dict[str, str] = {}
        self._flatten(key, self.table(key), "", found)
        return found

    def _flatten(self, key: str, values: dict[str, Any], prefix: str, found: dict[str, str]) -> None:
        for short, value in values.items():
            name = f"{prefix}{short}"
            if isinstance(value, dict):
                self._flatten(key, value, f"{name}.", found)
            elif isinstance(value, bool):
                found[name] = "true" if value else "false"
            elif isinstance(value, int | float):
                found[name] = str(value)
            elif isinstance(value, str):
                found[name] = self.substitute(self.where, f"{key}.{name}", value)
            else:
                self.fail(f"{key}.{name}", f"must be a text, a number, true or false, not {value!r}")

    def table(self, key: str) -> dict[str, Any]:
        value = self.take(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(key, f"must be a table, not {value!r}")
            return {}
        return value

    def watermark(self) -> Watermark | None:
        value = self.table("watermark")
        if not value:
            return None
        inner = _Keys(self.where, value, lambda w, k, t: self.fail(f"watermark.{k}", t), self.substitute)
        found = Watermark(inner.text("column"), inner.text("delay"))
        inner.end()
        return found

    def end(self) -> None:
        """Reports the keys that nobody took."""
        for key in self.values.keys() - self.taken:
            self.fail(key, f"is unknown; the keys are {', '.join(sorted(self.taken))}")


class _Reader:
    """Reads one file. Collects problems and goes on, so that a user sees all of them at once."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self._path = path
        self._environment = environment
        self._problems: list[str] = []

    def read(self, document: dict[str, Any]) -> tuple[Pipeline, list[str]]:
        top = self._keys("", document)
        head = self._keys("pipeline", top.table("pipeline"))
        name = head.text("name")
        checkpoints = self._place(head.text("checkpoints"))
        trigger = self._trigger(head)
        spark = head.options("spark")
        head.end()
        sources = tuple(map(self._source, self._named(top, "source")))
        tables = tuple(map(self._table, self._named(top, "table")))
        sinks = tuple(map(self._sink, self._named(top, "sink")))
        report = self._report(top.table("report")) if "report" in document else None
        for sink in sinks if report is not None else ():
            if sink.format == "logcore" and not any(name.lower() == "topic" for name in sink.options):
                words = "is missing: the report reads what a sink has written, so the topic is not a column"
                self._problem(f"sink.{sink.name}", "options.topic", words)
        top.end()
        self._relations(sources, tables, sinks)
        pipeline = Pipeline(self._path, name, checkpoints, trigger, spark, sources, tables, sinks, report)
        return pipeline, self._problems

    def _keys(self, where: str, values: dict[str, Any]) -> _Keys:
        return _Keys(where, values, self._problem, self._substitute)

    def _problem(self, where: str, key: str | None, words: str) -> None:
        place = " ".join(part for part in (f"[{where}]" if where else "", key or "") if part)
        self._problems.append(f"{self._path}: {place}: {words}")

    def _substitute(self, where: str, key: str, text: str) -> str:
        """Puts in `${NAME}`, `${NAME:-default}` of the environment, and `{directory}` of the file."""

        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if name in self._environment:
                return self._environment[name]
            if default is None:
                self._problem(where, key, f"the environment variable {name} is not set")
            return default or ""

        directory = str(self._path.resolve().parent)
        return _VARIABLE.sub(value, text).replace("{directory}", directory)

    def _place(self, text: str) -> Path:
        """A path; a relative one begins at the current directory, as those of other tools."""
        return Path(text).expanduser().absolute()

    def _trigger(self, head: _Keys) -> int | None:
        text = head.text("trigger", "available-now").strip()
        if text == "available-now":
            return None
        found = _TRIGGER.fullmatch(text)
        if found is None:
            head.fail("trigger", f"must be available-now, or a time such as 5 s, not {text!r}")
            return None
        return int(found[1]) * _UNITS_MS[found[2]]

    def _named(self, top: _Keys, kind: str) -> list[_Keys]:
        """The tables `[kind.NAME]`."""
        found = []
        for name, values in top.table(kind).items():
            if not isinstance(values, dict):
                self._problem(kind, name, f"must be a table [{kind}.{name}]")
                continue
            if not _NAME.fullmatch(name):
                self._problem(
                    f"{kind}.{name}", None, "a name has letters, digits and _, for it is used in SQL"
                )
            found.append(self._keys(f"{kind}.{name}", values))
        return found

    def _source(self, keys: _Keys) -> Source:
        kind = keys.choice("format", SOURCE_FORMATS)
        stream = keys.flag("stream")
        source = Source(
            name=keys.where.partition(".")[2],
            format=kind,
            stream=stream,
            options=keys.options("options"),
            schema=keys.optional("schema"),
            select=keys.texts("select"),
            watermark=keys.watermark(),
            deduplicate=keys.texts("deduplicate"),
        )
        if kind == "logcore":
            self._check_logcore_source(keys, source)
        elif "path" not in source.options:
            keys.fail("options.path", "is missing")
        if stream and kind in _STREAM_NEEDS_SCHEMA and source.schema is None:
            keys.fail("schema", f"is missing: a stream of {kind} files needs one")
        self._check_delta(keys, kind)
        keys.end()
        return source

    def _check_logcore_source(self, keys: _Keys, source: Source) -> None:
        from pyspark_logcore._options import parse_options

        try:
            options = parse_options(source.options)
            options.starting(stream=source.stream)
            if not source.stream:
                options.ending()
        except ValueError as error:
            keys.fail("options", str(error))

    def _check_delta(self, keys: _Keys, kind: str) -> None:
        if kind == "delta" and importlib.util.find_spec("delta") is None:
            keys.fail("format", "delta needs the package delta-spark; run: pip install delta-spark")

    def _table(self, keys: _Keys) -> Table:
        table = Table(
            name=keys.where.partition(".")[2],
            sql=keys.text("sql"),
            watermark=keys.watermark(),
            deduplicate=keys.texts("deduplicate"),
        )
        keys.end()
        return table

    def _sink(self, keys: _Keys) -> Sink:
        kind = keys.choice("format", SINK_FORMATS)
        sink = Sink(
            name=keys.where.partition(".")[2],
            source=keys.text("from"),
            format=kind,
            mode=keys.choice("mode", MODES),
            options=keys.options("options"),
            partition_by=keys.texts("partition_by") if kind in ("parquet", "delta") else (),
            keys=keys.texts("keys") if kind == "table-by-key" else (),
            order=keys.optional("order") if kind == "table-by-key" else None,
            deleted=keys.optional("deleted") if kind == "table-by-key" else None,
        )
        if kind == "logcore":
            sink = self._check_logcore_sink(keys, sink)
        elif kind != "console" and "path" not in sink.options:
            keys.fail("options.path", "is missing")
        if kind == "parquet" and sink.mode != "append":
            keys.fail("mode", f"must be append for {kind} files, not {sink.mode}")
        if kind == "table-by-key":
            if not sink.keys:
                keys.fail("keys", "is missing: the columns that tell the table's rows apart")
            if sink.mode == "complete":
                keys.fail("mode", "must be append or update for a table by key")
            for name in sink.options.keys() - {"path"}:
                keys.fail(f"options.{name}", "is unknown; the option is path")
        self._check_delta(keys, kind)
        keys.end()
        return sink

    def _check_logcore_sink(self, keys: _Keys, sink: Sink) -> Sink:
        from pyspark.sql.types import StringType, StructField, StructType

        from pyspark_logcore._sink import stream_writer

        options = {"exactly.once": "true", **sink.options}
        try:
            # The columns are checked when the table is known.
            fields = [StructField("value", StringType()), StructField("topic", StringType())]
            stream_writer(options, StructType(fields))
        except ValueError as error:
            keys.fail("options", str(error))
        return replace(sink, options=options)

    def _relations(
        self, sources: tuple[Source, ...], tables: tuple[Table, ...], sinks: tuple[Sink, ...]
    ) -> None:
        for kind, there in (("source", bool(sources)), ("sink", bool(sinks))):
            if not there:
                self._problem(kind, None, f"is missing: a pipeline needs at least one [{kind}.NAME]")
        if sources and not any(source.stream for source in sources):
            self._problem("source", None, "no source has stream = true")
        used: dict[str, str] = {}
        places = [f"source.{one.name}" for one in sources] + [f"table.{one.name}" for one in tables]
        for place in (*places, *(f"sink.{one.name}" for one in sinks)):
            # SQL does not tell upper and lower case apart.
            other = used.setdefault(place.partition(".")[2].lower(), place)
            if other != place:
                self._problem(place, None, f"the name is used by [{other}]")
        for sink in sinks:
            known = [*(one.name for one in sources), *(one.name for one in tables)]
            if sink.source and sink.source not in known:
                words = f"there is no source or table {sink.source!r}; there are {', '.join(known)}"
                self._problem(f"sink.{sink.name}", "from", words)
        paths: dict[str, str] = {}
        for sink in sinks:
            path = sink.options.get("path")
            if path is not None and (other := paths.setdefault(path, sink.name)) != sink.name:
                self._problem(f"sink.{sink.name}", "options.path", f"[sink.{other}] writes there, too")

    def _report(self, values: dict[str, Any]) -> Report:
        keys = self._keys("report", values)
        report = Report(
            title=keys.text("title"),
            lead=keys.text("lead", " ").strip(),
            path=self._place(keys.text("path")),
            figures=self._each(keys, "figure", _figure),
            charts=self._each(keys, "chart", _chart),
            checks=self._each(keys, "check", _check),
        )
        keys.end()
        return report

    def _each(self, keys: _Keys, key: str, make: Callable[[_Keys], T]) -> tuple[T, ...]:
        """The tables `[[report.KEY]]`, numbered from 1 in messages."""
        value = keys.take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            keys.fail(key, f"must be tables [[report.{key}]]")
            return ()
        found = []
        for number, one in enumerate(value, 1):
            inner = self._keys(f"report.{key} {number}", one)
            found.append(make(inner))
            inner.end()
        return tuple(found)


def _figure(keys: _Keys) -> Figure:
    return Figure(keys.text("text"), keys.text("sql"))


def _chart(keys: _Keys) -> Chart:
    return Chart(
        title=keys.text("title"),
        text=keys.text("text", " ").strip(),
        kind=keys.choice("kind", CHARTS),
        unit=keys.text("unit", " ").strip(),
        sql=keys.text("sql"),
    )


def _check(keys: _Keys) -> Check:
    return Check(keys.text("name"), keys.text("sql"))
