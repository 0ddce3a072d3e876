"""Random messages of every schema in the codec's table.

This is a second reader of the table, so that a defect of the codec's own reader shows.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLES = [
    Path(__file__).parents[2] / "rust/crates/protocol/src" / name
    for name in ("messages.table", "metadata.table", "records.table")
]

Message = dict[str, Any]


@dataclass
class Field:
    """A field: one line of the table."""

    name: str
    kind: str
    versions: range
    nullable: range
    tagged: range
    default: str | None
    fields: list[Field] = field(default_factory=list)


@dataclass
class Schema:
    """One message of the table; `key` is None for data."""

    kind: str
    key: int | None
    name: str
    versions: range
    fields: list[Field]


def parse_versions(text: str) -> range:
    """The range of versions that the table's text means."""
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), 1 << 15)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def parse_field(words: list[str]) -> Field:
    """The field of a line's words."""
    options = dict(word.partition("=")[::2] for word in words[3:])
    return Field(
        name=words[0],
        kind=words[1],
        versions=parse_versions(words[2]),
        nullable=parse_versions(options.get("null", "none")),
        tagged=parse_versions(options["tag"].partition(":")[2] if "tag" in options else "none"),
        default=options.get("default"),
    )


@functools.cache
def schemas() -> list[Schema]:
    """Every schema of the tables."""
    found: list[Schema] = []
    for table in TABLES:
        stack: list[list[Field]] = []
        for line in table.read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            words = line.split()
            if not line.startswith(" "):
                key = None if words[0] == "data" else int(words.pop(1))
                schema = Schema(words[0], key, words[1], parse_versions(words[2]), [])
                found.append(schema)
                stack = [schema.fields]
                continue
            depth = len(line) - len(line.lstrip())
            del stack[depth:]
            parsed = parse_field(words)
            stack[-1].append(parsed)
            stack.append(parsed.fields)
    return found


def every_version() -> list[tuple[str, Schema, int]]:
    """Test id, schema and version, for every schema and version."""
    return [
        (f"{schema.name}-{schema.kind}-v{version}", schema, version)
        for schema in schemas()
        for version in schema.versions
    ]


def default_of(spec: Field) -> Any:
    """The decoded value of a field that was not sent."""
    text = spec.default
    if text == "null" or spec.kind == "records":
        return None
    if spec.kind.startswith("[]"):
        return []
    if spec.kind == "struct":
        return {inner.name: default_of(inner) for inner in spec.fields}
    if spec.kind == "bool":
        return text == "true"
    if spec.kind == "float64":
        return float(text or 0)
    zeros: dict[str, Any] = {"string": "", "bytes": b"", "uuid": bytes(16)}
    return zeros[spec.kind] if spec.kind in zeros else int(text or 0)


def random_message(fields: list[Field], version: int, source: random.Random) -> Message:
    """A message with random values, and the defaults where the version lacks the field."""
    return {
        spec.name: random_field(spec, version, source) if version in spec.versions else default_of(spec)
        for spec in fields
    }


def random_field(spec: Field, version: int, source: random.Random) -> Any:
    """A value that this version allows: null and the default too."""
    if version in spec.nullable and source.random() < 0.25:
        return None
    if version in spec.tagged and source.random() < 0.25:
        return default_of(spec)
    if spec.kind.startswith("[]"):
        element = Field(spec.name, spec.kind[2:], spec.versions, range(0), range(0), None, spec.fields)
        return [random_field(element, version, source) for _ in range(source.randrange(4))]
    if spec.kind == "struct":
        return random_message(spec.fields, version, source)
    return random_scalar(spec.kind, source)


def random_scalar(kind: str, source: random.Random) -> Any:
    """A value of a type that contains no other."""
    length = source.choice((0, 1, 5, 126, 127, 128, 300))
    match kind:
        case "bool":
            return source.random() < 0.5
        case "float64":
            return source.randrange(-1000, 1000) / 8
        case "uuid":
            return source.randbytes(16)
        case "string":
            if source.random() < 0.002:
                return "🦀" * 8191  # four bytes each: the longest string
            return "".join(source.choice('aZ09-"\\\n\1é日🦀') for _ in range(length))
        case "bytes" | "records":
            return source.randbytes(length)
    bits = int(kind.lstrip("uint"))
    lowest = 0 if kind.startswith("u") else -(1 << bits - 1)
    return source.choice(
        (lowest, 0, 1, lowest + (1 << bits) - 1, source.randrange(lowest, lowest + (1 << bits)))
    )
