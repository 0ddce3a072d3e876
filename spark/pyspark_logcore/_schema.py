"""The columns of Spark's Kafka source, and the check of a schema that the user sets."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS = "headers"

_HEADER_TYPE = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

_COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(_HEADER_TYPE),
}

# Every record has these, so a user may declare them NOT NULL.
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


def kafka_schema(include_headers: bool) -> StructType:
    """The schema of Spark's Kafka source. There every field is nullable, and so here."""
    names = [name for name in _COLUMNS if include_headers or name != HEADERS]
    return StructType([StructField(name, _COLUMNS[name]) for name in names])


def check_schema(schema: StructType, typed: Collection[str] = ()) -> None:
    """Raises ValueError when `schema` has an unknown column, or a column of another type. The columns `typed`
    are not checked.
    """
    known = ", ".join(dict.fromkeys([*_COLUMNS, *typed]))
    if not schema.fields:
        raise ValueError(f"the schema names no column; choose from {known}")
    for field in schema.fields:
        if field.name in typed:
            continue
        expected = _COLUMNS.get(field.name)
        if expected is None:
            raise ValueError(f"there is no column {field.name!r}; the columns are {known}")
        if field.dataType != expected:
            raise ValueError(
                f"column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}; "
                "read it with this type and convert it with a column expression"
            )
        if not field.nullable and field.name not in _NEVER_NULL:
            raise ValueError(f"column {field.name!r} can be null and cannot be declared NOT NULL")


def with_nullability(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """The batch with the nullability of the user's schema. No data is copied."""
    if all(field.nullable for field in schema.fields):
        return batch
    fields = [
        arrow.with_nullable(field.nullable) for arrow, field in zip(batch.schema, schema.fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))
