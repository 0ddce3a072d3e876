"""Typed values: the options `value.format` and `key.format`, which make a struct column of values or keys.

The decoder is the extension's (`logcore.columns.TypedDecoder`). This module has the options, the schemas, and
what happens to malformed records. Schemas from a registry are asked for where they are needed: the reader's
schema when the query is planned, those of writers in the tasks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from logcore.columns import TypedDecoder, avro_schema, protobuf_schema
from pyspark_logcore import _registry
from pyspark_logcore._registry import Registry, parse_registry
from pyspark_logcore._schema import kafka_schema

logger = logging.getLogger("pyspark_logcore")

OPTIONS = (
    "value.format",
    "value.schema",
    "value.subject",
    "value.descriptor",
    "value.message",
    "value.framing",
    "key.format",
    "key.schema",
    "key.subject",
    "key.descriptor",
    "key.message",
    "key.framing",
    _registry.URL,
    _registry.USER,
    "sep",
    "mode",
    "columnNameOfCorruptRecord",
    "columnNameOfCorruptKey",
)
"""Spelled as in the README."""

_FORMATS = ("json", "csv", "avro", "protobuf")
_MODES = ("permissive", "dropmalformed", "failfast")
_CORRUPT = {
    "value": ("columnNameOfCorruptRecord", "_corrupt_record"),
    "key": ("columnNameOfCorruptKey", "_corrupt_key"),
}

_PLAIN: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    TimestampNTZType: pa.timestamp("us"),
}


@dataclass(frozen=True)
class Message:
    """A type of Protobuf messages."""

    descriptors: bytes
    """A `FileDescriptorSet`."""
    name: str
    framed: bool
    """Whether records begin with the frame of a registry."""


@dataclass(frozen=True)
class TypedOptions:
    """The user's options. Each mapping has the keys "value" and "key", or one of them."""

    formats: Mapping[str, str]
    schemas: Mapping[str, str]
    subjects: Mapping[str, str]
    messages: Mapping[str, Message]
    registry: Registry | None
    separator: str
    mode: str
    corrupt: Mapping[str, str]
    """The names of the columns of malformed records. Empty unless the mode is permissive."""

    @property
    def names(self) -> Collection[str]:
        """The columns that are not those of Spark's Kafka source."""
        return [*self.formats, *self.corrupt.values()]

    def schema(self, kafka: StructType) -> str:
        """The schema without one of the user's: `kafka` with the typed columns. In DDL, which Spark parses:
        Python's workers cannot.
        """
        columns = []
        for one in kafka.fields:
            ddl = self._ddl(one.name) if one.name in self.formats else one.dataType.simpleString()
            columns.append(f"{_quoted(one.name)} {ddl}")
        columns += [f"{_quoted(name)} binary" for name in self.corrupt.values()]
        return ", ".join(columns)

    def read_as(self, schema: StructType) -> TypedRead:
        """How rows of this schema are read, which may name a part of the fields. Raises ValueError that names
        the column when a field is unknown or has another type.
        """
        types: dict[str, StructType] = {}
        avro: dict[str, str] = {}
        given = {one.name: one for one in schema.fields}
        for column, form in self.formats.items():
            found = given.get(column)
            corrupt = given.get(self.corrupt.get(column, ""))
            if corrupt is not None:
                if corrupt.dataType != BinaryType() or not corrupt.nullable:
                    raise ValueError(f"column {corrupt.name!r} is binary, and can be null")
                if found is None:
                    raise ValueError(f"column {corrupt.name!r} needs column {column!r} beside it")
            if found is None:
                continue
            if not isinstance(found.dataType, StructType) or not found.dataType.fields:
                raise ValueError(f"column {column!r} is a struct of the fields of its schema")
            if not found.nullable or _nullable(found.dataType) != found.dataType:
                raise ValueError(f"column {column!r} and its fields can be null: none is NOT NULL")
            if form == "avro":
                avro[column] = self._avro(column)
            if form in ("avro", "protobuf"):
                _check_part(found.dataType, self._declared(column, avro.get(column, "")), column)
            types[column] = found.dataType
        read = TypedRead(self, schema, types, avro)
        # A type that the format does not have is an error of the plan, not of the tasks.
        read.decoders()
        return read

    def line(self, column: str) -> list[str]:
        """The columns of a CSV line."""
        return [_unquoted(name) for name in _COLUMN.findall(_COMMENT.sub("", self._text(column)))]

    def _ddl(self, column: str) -> str:
        """The type of the column."""
        form = self.formats[column]
        if form in ("avro", "protobuf"):
            avro = self._avro(column) if form == "avro" else ""
            return self._declared(column, avro).simpleString()
        return f"struct<{self._text(column)}>"

    def _declared(self, column: str, avro: str) -> StructType:
        """Every field of the column's Avro schema or Protobuf message."""
        message = self.messages.get(column)
        option = f"{column}.schema" if message is None else f"{column}.descriptor"
        try:
            declared = (
                avro_schema(avro) if message is None else protobuf_schema(message.descriptors, message.name)
            )
            found = _nullable(from_arrow_schema(pa.schema(declared), True))
        except ValueError as problem:
            raise ValueError(f"option {option!r}: {problem}") from None
        assert isinstance(found, StructType)
        return found

    def _text(self, column: str) -> str:
        text = self.schemas.get(column, "").strip()
        if text.lower().startswith("struct<") and text.endswith(">"):
            text = text[len("struct<") : -1]
        if not text:
            raise ValueError(f"set option '{column}.schema', such as 'carrier string, delay int'")
        return text

    def _avro(self, column: str) -> str:
        """The reader's Avro schema."""
        text = self.schemas.get(column)
        if text is not None:
            return text
        assert self.registry is not None
        return self.registry.latest(self.subjects[column])


@dataclass(frozen=True)
class TypedRead:
    """How the rows of one query are read. Pickled into tasks."""

    options: TypedOptions
    rows: StructType
    """The columns of the rows, in their order."""
    types: Mapping[str, StructType]
    """The types of the columns that are decoded."""
    avro: Mapping[str, str]
    """Their readers' Avro schemas."""

    @property
    def columns(self) -> list[str]:
        """The columns of Spark's Kafka source that are needed. Offsets are for messages."""
        corrupt = set(self.options.corrupt.values())
        names = [name for name in self.rows.fieldNames() if name not in corrupt]
        return list(dict.fromkeys([*names, *self.types, "offset"]))

    def decoders(self) -> dict[str, TypedDecoder]:
        """A decoder for each column of `types`."""
        return {column: self._decoder(column) for column in self.types}

    def decode(self, batches: Iterator[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
        """The batches with the typed columns. Counts malformed records, and says so once. `place` is the
        partition, for messages.
        """
        decoders = self.decoders()
        report = _Report(place)
        try:
            for batch in batches:
                report.records += batch.num_rows
                for column, decoder in decoders.items():
                    batch = self._decode(column, decoder, batch, report)
                yield batch.select(self.rows.fieldNames())
        finally:
            report.log(self.options.mode)

    def _decode(
        self, column: str, decoder: TypedDecoder, batch: pa.RecordBatch, report: _Report
    ) -> pa.RecordBatch:
        if self.options.registry is not None:
            for number in decoder.unknown_schemas(batch):
                decoder.add_schema(number, self.options.registry.by_id(number))
        decoded, malformed, first = decoder.decode(batch)
        if first is not None:
            row, reason = first
            offset = batch.column("offset")[row].as_py()
            text = f"the {column} at offset {offset} is malformed ({self.options.formats[column]}): {reason}"
            if self.options.mode == "failfast":
                raise ValueError(f"{report.place}: {text}")
            report.add(malformed, text)
        return pa.record_batch(decoded)

    def _decoder(self, column: str) -> TypedDecoder:
        options = self.options
        wanted = _arrow_field(column, self.types[column])
        corrupt = options.corrupt.get(column)
        if corrupt not in self.rows.fieldNames():
            corrupt = None
        drop = options.mode == "dropmalformed"
        try:
            if options.formats[column] == "json":
                return TypedDecoder.json(wanted, corrupt_column=corrupt, drop_malformed=drop)
            if options.formats[column] == "csv":
                return TypedDecoder.csv(
                    wanted,
                    options.line(column),
                    options.separator,
                    corrupt_column=corrupt,
                    drop_malformed=drop,
                )
            if options.formats[column] == "protobuf":
                message = options.messages[column]
                return TypedDecoder.protobuf(
                    wanted,
                    message.descriptors,
                    message.name,
                    message.framed,
                    corrupt_column=corrupt,
                    drop_malformed=drop,
                )
            framed = options.registry is not None
            return TypedDecoder.avro(
                wanted, self.avro[column], framed, corrupt_column=corrupt, drop_malformed=drop
            )
        except ValueError as problem:
            raise ValueError(f"column {column!r}: {problem}") from None


@dataclass
class _Report:
    """The malformed records of a task."""

    place: str
    records: int = 0
    malformed: int = 0
    first: str = ""

    def add(self, count: int, text: str) -> None:
        self.malformed += count
        self.first = self.first or text

    def log(self, mode: str) -> None:
        if self.malformed:
            logger.warning(
                "%s: %d malformed among %d records (mode %s); the first: %s",
                self.place,
                self.malformed,
                self.records,
                mode,
                self.first,
            )


def parse_typed(options: Mapping[str, str], topics: Collection[str]) -> TypedOptions | None:
    """Parses the options, whose names are in lower case. None if no format is set.

    Raises ValueError that names the option. `topics` are those of the option subscribe.
    """
    formats = {
        column: options[f"{column}.format"].strip().lower()
        for column in ("value", "key")
        if f"{column}.format" in options
    }
    for column, name in formats.items():
        if name not in _FORMATS:
            raise ValueError(f"option '{column}.format' must be one of {', '.join(_FORMATS)}, not {name!r}")
    _refuse_useless(options, formats)
    if not formats:
        return None
    registry = parse_registry(options)
    schemas = {column: options[f"{column}.schema"] for column in formats if f"{column}.schema" in options}
    subjects: dict[str, str] = {}
    for column, name in formats.items():
        if name != "avro" or column in schemas:
            continue
        if registry is None:
            raise ValueError(f"set option '{column}.schema' to an Avro schema, or 'schema.registry.url'")
        subject = options.get(f"{column}.subject")
        if subject is None and len(topics) != 1:
            raise ValueError(f"set option '{column}.schema' or '{column}.subject': no single topic is read")
        subjects[column] = subject or f"{next(iter(topics))}-{column}"
    mode = options.get("mode", _MODES[0]).strip().lower()
    if mode not in _MODES:
        raise ValueError(f"option 'mode' must be one of {', '.join(_MODES)}, not {mode!r}")
    separator = options.get("sep", ",")
    if len(separator.encode()) != 1 or separator in '"\r\n':
        raise ValueError(f"option 'sep' must be one ASCII character, not {separator!r}")
    corrupt: dict[str, str] = {}
    if mode == "permissive":
        for column in formats:
            option, default = _CORRUPT[column]
            corrupt[column] = options.get(option.lower(), default)
    _check_names(corrupt)
    messages = {column: _message(options, column) for column, name in formats.items() if name == "protobuf"}
    return TypedOptions(formats, schemas, subjects, messages, registry, separator, mode, corrupt)


def _message(options: Mapping[str, str], column: str) -> Message:
    descriptor = options.get(f"{column}.descriptor")
    if descriptor is None:
        raise ValueError(f"set option '{column}.descriptor' to a file of protoc's --descriptor_set_out")
    name = options.get(f"{column}.message")
    if name is None:
        raise ValueError(f"set option '{column}.message' to the full name of a message")
    try:
        descriptors = Path(descriptor).read_bytes()
    except OSError as error:
        raise ValueError(f"option '{column}.descriptor': {error}") from None
    framing = options.get(f"{column}.framing", "none").strip().lower()
    if framing not in ("none", "confluent"):
        raise ValueError(f"option '{column}.framing' must be one of none, confluent, not {framing!r}")
    return Message(descriptors, name, framing == "confluent")


def _refuse_useless(options: Mapping[str, str], formats: Mapping[str, str]) -> None:
    """An option without its format is a mistake."""
    for name in OPTIONS:
        if name.lower() not in options or name.endswith(".format"):
            continue
        column = name.partition(".")[0]
        if column in _CORRUPT and column not in formats:
            raise ValueError(f"option {name!r} needs option '{column}.format'")
        if not formats:
            raise ValueError(f"option {name!r} needs option 'value.format' or 'key.format'")


def _check_names(corrupt: Mapping[str, str]) -> None:
    taken = set(kafka_schema(True).fieldNames())
    for column, name in corrupt.items():
        if not name or name in taken:
            raise ValueError(f"option {_CORRUPT[column][0]!r}: {name!r} is another column's name")
        taken.add(name)


def _check_part(part: StructType, whole: StructType, path: str) -> None:
    known = {one.name: one.dataType for one in whole.fields}
    for one in part.fields:
        name = f"{path}.{one.name}"
        expected = known.get(one.name)
        if expected is None:
            raise ValueError(f"there is no field {name!r}; the fields are {', '.join(known)}")
        if isinstance(expected, StructType) and isinstance(one.dataType, StructType):
            _check_part(one.dataType, expected, name)
        elif one.dataType != expected:
            raise ValueError(
                f"field {name!r} is {expected.simpleString()}, not {one.dataType.simpleString()}"
            )


def _nullable(found: DataType) -> DataType:
    """The type with every part nullable, as Spark's from_json makes it."""
    if isinstance(found, StructType):
        return StructType(
            [StructField(one.name, _nullable(one.dataType), True, one.metadata) for one in found.fields]
        )
    if isinstance(found, ArrayType):
        return ArrayType(_nullable(found.elementType))
    if isinstance(found, MapType):
        return MapType(_nullable(found.keyType), _nullable(found.valueType))
    return found


_COMMENT = re.compile(r"""\bcomment\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.I)
# The names in a DDL schema without nested types and comments. A type has commas in parentheses only.
_COLUMN = re.compile(r"(`(?:[^`]|``)+`|[^\s:,`]+)\s*:?\s*[A-Za-z][^,(]*(?:\([^)]*\))?[^,]*(?:,\s*|$)")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _arrow_field(name: str, found: StructType) -> pa.Field:
    """The Arrow field of a column, of the types that Spark takes."""
    return pa.field(name, _arrow_type(found, name))


def _arrow_type(found: DataType, path: str) -> pa.DataType:
    plain = _PLAIN.get(type(found))
    if plain is not None:
        return plain
    if isinstance(found, DecimalType):
        return pa.decimal128(found.precision, found.scale)
    if isinstance(found, StructType):
        names = found.fieldNames()
        if len(set(names)) != len(names):
            raise ValueError(f"{path!r} has two fields of one name: {', '.join(names)}")
        return pa.struct(
            [pa.field(one.name, _arrow_type(one.dataType, f"{path}.{one.name}")) for one in found.fields]
        )
    if isinstance(found, ArrayType):
        return pa.list_(pa.field("element", _arrow_type(found.elementType, f"{path}.element")))
    if isinstance(found, MapType):
        key = pa.field("key", _arrow_type(found.keyType, f"{path}.key"), nullable=False)
        return pa.map_(key, pa.field("value", _arrow_type(found.valueType, f"{path}.value")))
    raise ValueError(f"field {path!r}: records have no values of type {found.simpleString()}")
